//! Tests of tiers, from making a copy to a disk on which every operation fails once.

mod common;
mod life;
mod sweep;
