//! The `axp` command.

fn main() {}
