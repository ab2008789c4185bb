"""What profiling and training share: starting worker processes, and the loop that runs inside them.

The parent side (`launch`) never imports torch; the child side (`worker`, `context`, `batches`, `assemble`, `loop`,
`evaluate`, `checkpoint`, `noise_meter`) does.
"""
