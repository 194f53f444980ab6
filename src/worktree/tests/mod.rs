//! Tests with real repositories, driven by the real git.

mod checkpoint;
mod create;
mod discover;
mod environment;
mod kinds;
mod names;
mod restore;
mod strayed;
mod support;
