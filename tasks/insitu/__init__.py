"""In-situ compression: sources of frames, gates, the encoding of groups, restoring."""
