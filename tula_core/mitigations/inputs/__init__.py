"""Methods that change what the network is shown: labels, mixtures, resolutions, adversaries, repeats."""
