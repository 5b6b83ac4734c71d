//! Reading ahead of the first reader of a large file (`--prefetch auto` and `file`).
//! [`forebay_policy::read_ahead`] decides how far.
//!
//! The kernel reads the pieces into the page cache of the source's file, many at the same time, at the agent's request.
//! There the program finds them as well as the worker that makes the copy, so the source is asked for each byte once,
//! and a page that the program has read itself costs the source nothing more.

pub(crate) mod file;
pub(crate) mod formats;
pub(crate) mod mapped;
pub(crate) mod programs;
