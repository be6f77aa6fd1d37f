"""What surrounds the code under test: libraries, kernels, interpreters, vendored copies."""
