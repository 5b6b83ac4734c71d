//! Linker flags of the library. Rust's own version script exports the hooks (`no_mangle`) and nothing else.

fn main() {
    for argument in [
        // No start files: there is nothing to run before our one constructor, and nothing at exit.
        "-nostartfiles",
        "-lc",
        "-Wl,-soname,libforebay_preload.so",
        // A remaining panic path calls a function that nobody defines (see `lib.rs`): the link fails.
        "-Wl,-z,defs",
        "-Wl,-z,now",
        "-Wl,-z,relro",
        "-Wl,-z,noexecstack",
        // The library stays: statics point into it, and a hook may be on any thread's stack.
        "-Wl,-z,nodelete",
        "-Wl,--hash-style=gnu",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
