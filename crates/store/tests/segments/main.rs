//! Segments: extents packed into large files.

mod common;
mod life;
mod sweep;
