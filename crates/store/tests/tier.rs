//! Tests of tiers, from making a copy to a disk on which every operation fails once. They must not start a program: see
//! `processes.rs`.

mod common;

mod tier {
    mod catalogue;
    mod life;
    mod security;
    mod speed;
    mod sweep;
}
