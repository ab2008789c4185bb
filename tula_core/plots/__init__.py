"""Pictures: `data` computes what is drawn, `draw` draws it; only `draw` knows matplotlib."""
