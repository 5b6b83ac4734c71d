//! Patterns of excluded files: examples as a user writes them, and a comparison with a simple matcher.

use forebay_contract::{
    Excludes,
    exclude::{EXCLUDES_BYTES_MAX, check},
};
use proptest::prelude::*;

const ROOTS: [&[u8]; 2] = [b"/data", b"/srv/u/data"];

fn excluded(patterns: &[&str], path: &str) -> bool {
    let text: Vec<u8> = patterns.iter().flat_map(|pattern| [pattern.as_bytes(), b"\0"].concat()).collect();
    Excludes::new(&text).matches(path.as_bytes(), &ROOTS.into_iter())
}

#[test]
fn patterns_match_names_paths_below_a_source_and_absolute_paths() {
    for (pattern, path, is) in [
        // A name at any depth, and all below a directory of that name.
        ("*.mdb", "/data/a/b/data.mdb", true),
        ("*.mdb", "/data/data.mdbx", false),
        ("*.mdb", "/data/x.mdb/part", true),
        ("live", "/data/live", true),
        ("live", "/data/a/live/x", true),
        ("live/", "/data/a/live/x", true),
        ("live", "/data/lively", false),
        ("live", "/data/alive", false),
        ("data", "/data/x", false),
        (".*", "/data/.hidden/x", true),
        ("*", "/data/x", true),
        // A path from the source on, by whatever name of it.
        ("a/b", "/data/a/b", true),
        ("a/b", "/srv/u/data/a/b/c", true),
        ("a/b", "/data/x/a/b", false),
        ("a/*.log", "/data/a/x.log", true),
        ("a/*.log", "/data/a/b/x.log", false),
        ("a/**", "/data/a/b/x", true),
        ("a/**", "/data/a", false),
        ("a/**/x", "/data/a/x", true),
        ("a/**/x", "/data/a/b/c/x/y", true),
        ("a/**/x", "/data/a/b/c/xx", false),
        ("**/b/c", "/data/a/b/c", true),
        ("**/b/c", "/data/b/c", true),
        ("a**c/d", "/data/abc/d", true),
        ("a**c/d", "/data/a/c/d", false),
        // An absolute path.
        ("/data/a", "/data/a/b", true),
        ("/data/a", "/srv/u/data/a/b", false),
        ("/*/a", "/data/a", true),
        ("/data", "/data/x", true),
        ("/**", "/data/x", true),
        // Outside of every source, names still match, relative paths do not.
        ("*.mdb", "/other/x.mdb", true),
        ("other/x", "/other/x", false),
        // Characters.
        ("run?.log", "/data/run1.log", true),
        ("run?.log", "/data/run.log", false),
        ("?", "/data/\u{e9}", true),
        ("??", "/data/\u{e9}", false),
        ("[a-c]x", "/data/bx", true),
        ("[!a-c]x", "/data/bx", false),
        ("[^a-c]x", "/data/zx", true),
        ("[]]x", "/data/]x", true),
        ("[a-]x", "/data/-x", true),
        (r"[\]]x", "/data/]x", true),
        (r"\*", "/data/*", true),
        (r"\*", "/data/x", false),
        ("a*b*c", "/data/aXbXbXc", true),
        ("a*b*c", "/data/aXbXbX", false),
        ("a*/c", "/data/ab/c", true),
        ("a*/c", "/data/ab/b/c", false),
    ] {
        assert_eq!(check(pattern.as_bytes()), Ok(()), "{pattern}");
        assert_eq!(excluded(&[pattern], path), is, "{pattern} {path}");
        assert_eq!(excluded(&["zzz", pattern], path), is, "{pattern} {path}");
    }
    assert!(!excluded(&[], "/data/x"));
}

#[test]
fn patterns_that_can_not_be_meant_are_refused() {
    let long = "x".repeat(EXCLUDES_BYTES_MAX);
    for pattern in [
        "",
        "/",
        "//",
        "[a",
        "[]",
        "[!]",
        r"a\",
        "./a",
        "a/../b",
        "a/.",
        "[\u{e9}]",
        "a\0b",
        long.as_str(),
    ] {
        assert!(check(pattern.as_bytes()).is_err(), "{pattern}");
    }
}

/// Matches one character after the other, trying everything.
fn slowly(pattern: &[u8], path: &[u8], begins_name: bool) -> bool {
    match pattern {
        [] => path.first().is_none_or(|byte| *byte == b'/'),
        b"**" if begins_name => !path.is_empty() || slowly(b"", path, false),
        [b'*', b'*', b'/', rest @ ..] if begins_name => {
            let starts = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at + 1);
            std::iter::once(0).chain(starts).any(|at| slowly(rest, &path[at..], true))
        }
        [b'*', rest @ ..] => {
            let name = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
            (0..=name).any(|at| slowly(rest, &path[at..], false))
        }
        [b'?', rest @ ..] => path.first().is_some_and(|byte| *byte != b'/') && slowly(rest, &path[1..], false),
        [byte, rest @ ..] => path.first() == Some(byte) && slowly(rest, &path[1..], *byte == b'/'),
    }
}

proptest! {
    #[test]
    fn going_back_to_the_last_star_is_enough(pattern in "/[ab/*?]{0,12}", path in "(/[ab]{1,4}){1,5}") {
        prop_assume!(check(pattern.as_bytes()).is_ok());
        // Final slashes mean nothing, and a run of stars in a name is one.
        let simple = pattern.trim_end_matches('/');
        prop_assert_eq!(excluded(&[&pattern], &path), slowly(simple.as_bytes(), path.as_bytes(), true), "{} {}", pattern, path);
    }

    #[test]
    fn any_bytes_are_taken(text: Vec<u8>, path: Vec<u8>) {
        Excludes::new(&text).matches(&path, &ROOTS.into_iter());
        for pattern in text.split(|byte| *byte == 0) {
            let _ = check(pattern);
        }
    }
}
