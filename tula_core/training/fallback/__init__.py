"""What happens when the methods of a plan were a wrong guess: seen in training, answered by the next best."""
