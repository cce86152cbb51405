"""Read a Kineto Chrome trace into columns, of every schema from 2021 on; write and redact one."""
