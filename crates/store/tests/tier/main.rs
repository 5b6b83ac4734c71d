//! Tests of tiers, from making a copy to a disk on which every operation fails once.

mod catalogue;
mod common;
mod kill;
mod life;
mod security;
mod sweep;
