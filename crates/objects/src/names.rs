//! Turns the keys of a listing into names of files, without I/O. A key is any text, a path is not: an object without a
//! place in a directory tree is left out and counted, and no name leads out of the view (S3).

use std::collections::{BTreeMap, BTreeSet};

use crate::{limits, store::Object};

/// Reason why an object has no place in a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Odd {
    /// A name between two slashes is empty, or the key begins with a slash.
    Empty,
    /// One of its names is `.` or `..`.
    Dots,
    /// It ends with a slash, and is not empty.
    Slash,
    /// A name, or the path, is longer than Linux allows.
    Long,
    /// It has a zero byte, or is not UTF-8.
    NoText,
    /// Other objects are below it, so a directory has its name.
    Directory,
    /// It is not below the requested prefix.
    Foreign,
}

impl Odd {
    /// Returns the words that complete "the object ...".
    pub fn words(self) -> &'static str {
        match self {
            Self::Empty => "has an empty name in its path",
            Self::Dots => "has '.' or '..' in its path",
            Self::Slash => "ends with '/' and is not empty",
            Self::Long => "has too long a name",
            Self::NoText => "has a name that is not text",
            Self::Directory => "has the name of a directory",
            Self::Foreign => "was not asked for",
        }
    }
}

/// Files and directories for a listing.
#[derive(Debug, Default)]
pub(crate) struct PathLayout {
    /// The files by their path below the view.
    pub(crate) files: BTreeMap<String, Object>,
    /// Directories that have an object of their own (`train/`): they are there even when they are empty.
    pub(crate) directories: BTreeSet<String>,
    /// Objects without a place: number and one example for each reason.
    pub(crate) left_out: BTreeMap<Odd, (u64, String)>,
}

impl PathLayout {
    /// Lays the objects of a listing out below a view whose own path has `root_bytes` bytes.
    pub(crate) fn of(objects: impl IntoIterator<Item = Object>, prefix: &str, root_bytes: usize) -> Self {
        let mut layout = Self::default();
        for object in objects {
            match place(&object, prefix, root_bytes) {
                Ok(KeyPlace::File(path)) => {
                    layout.files.insert(path.to_owned(), object);
                }
                Ok(KeyPlace::Directory(path)) => {
                    layout.directories.insert(path.to_owned());
                }
                Err(odd) => layout.leave_out(odd, &object),
            }
        }
        // A path above a file is a directory, so it can't be a file.
        let parents: BTreeSet<&str> = layout
            .files
            .keys()
            .flat_map(|path| above(path))
            .chain(layout.directories.iter().flat_map(|path| above(path).chain([&**path])))
            .collect();
        let shadowed: Vec<String> = layout.files.keys().filter(|path| parents.contains(&***path)).cloned().collect();
        for path in shadowed {
            if let Some(object) = layout.files.remove(&path) {
                layout.leave_out(Odd::Directory, &object);
            }
        }
        layout
    }

    fn leave_out(&mut self, odd: Odd, object: &Object) {
        let (count, _) = self.left_out.entry(odd).or_insert_with(|| (0, object.shown()));
        *count += 1;
    }
}

#[derive(Debug, PartialEq, Eq)]
enum KeyPlace<'a> {
    File(&'a str),
    Directory(&'a str),
}

fn place<'a>(object: &'a Object, prefix: &str, root_bytes: usize) -> Result<KeyPlace<'a>, Odd> {
    let key = object.key.as_deref().map_err(|_| Odd::NoText)?;
    let path = key.strip_prefix(prefix).ok_or(Odd::Foreign)?;
    if root_bytes + 1 + path.len() >= limits::PATH_BYTES_MAX {
        return Err(Odd::Long);
    }
    if path.contains('\0') {
        return Err(Odd::NoText);
    }
    let (path, is_directory) = path.strip_suffix('/').map_or((path, false), |path| (path, true));
    // The object of the prefix itself, which many tools create.
    if path.is_empty() && !is_directory {
        return if object.size > 0 {
            Err(Odd::Slash)
        } else {
            Ok(KeyPlace::Directory(""))
        };
    }
    for name in path.split('/') {
        match name {
            "" => return Err(Odd::Empty),
            "." | ".." => return Err(Odd::Dots),
            name if name.len() > limits::NAME_BYTES_MAX => return Err(Odd::Long),
            _ => {}
        }
    }
    match (is_directory, object.size) {
        (true, 0) => Ok(KeyPlace::Directory(path)),
        (true, _) => Err(Odd::Slash),
        (false, _) => Ok(KeyPlace::File(path)),
    }
}

/// Returns the directories above a path: for `a/b/c`, `a` and `a/b`.
pub(crate) fn above(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').filter_map(move |(at, _)| path.get(..at))
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use proptest::prelude::*;

    use super::*;

    fn object(key: &str, size: u64) -> Object {
        Object {
            key: Ok(key.to_owned()),
            etag: "e".into(),
            size,
            modified_ms: 0,
        }
    }

    fn layout(keys: &[&str], prefix: &str) -> PathLayout {
        PathLayout::of(keys.iter().map(|key| object(key, 1)), prefix, 10)
    }

    #[test]
    fn keys_become_paths_below_the_prefix() {
        let layout = layout(&["p/a", "p/b/c", "p/b/d e+f%20", "p/ü/\u{1F40B}\n"], "p/");
        let paths: Vec<&str> = layout.files.keys().map(String::as_str).collect();
        assert_eq!(paths, ["a", "b/c", "b/d e+f%20", "ü/\u{1F40B}\n"]);
        assert!(layout.left_out.is_empty() && layout.directories.is_empty());
    }

    #[test]
    fn objects_of_directories_make_directories() {
        let made = PathLayout::of(["p/", "p/a/", "p/b/c/", "p/b/c/d"].map(|key| object(key, 0)), "p/", 10);
        assert_eq!(made.directories.iter().collect::<Vec<_>>(), ["", "a", "b/c"]);
        assert_eq!(made.files.keys().collect::<Vec<_>>(), ["b/c/d"]);
        assert!(made.left_out.is_empty());
    }

    #[test]
    fn what_has_no_place_is_left_out_by_reason() {
        let name = "n".repeat(256);
        let path = format!("p/{}", "d/".repeat(2048)) + "x";
        let keys = [
            "p//x",
            "p/a//b",
            "p/../x",
            "p/a/./b",
            "p/..",
            "p/dir/",
            "p/zero\0",
            "q/x",
            &name,
            &path,
            "p/f",
            "p/f/below",
        ];
        let made = layout(&keys, "p/");
        assert_eq!(made.files.keys().collect::<Vec<_>>(), ["f/below"]);
        let counts: Vec<(Odd, u64)> = made.left_out.iter().map(|(odd, (count, _))| (*odd, *count)).collect();
        assert_eq!(
            counts,
            [
                (Odd::Empty, 2),
                (Odd::Dots, 3),
                (Odd::Slash, 1),
                (Odd::Long, 1),
                (Odd::NoText, 1),
                (Odd::Directory, 1),
                (Odd::Foreign, 2)
            ]
        );
        assert_eq!(made.left_out[&Odd::Directory].1, "p/f");
        assert_eq!(layout(&["/etc/passwd", "//host/x"], "").left_out[&Odd::Empty].0, 2);
        assert!(layout(&[&name], "").left_out.contains_key(&Odd::Long));
        let no_text = Object {
            key: Err(b"\xff\n".to_vec()),
            ..object("", 1)
        };
        assert_eq!(
            PathLayout::of([no_text], "", 10).left_out[&Odd::NoText],
            (1, "\u{fffd}?".to_owned())
        );
    }

    #[test]
    fn a_directory_keeps_its_name() {
        let made = PathLayout::of([object("a", 1), object("a/", 0), object("b/c", 1), object("b/c/d/e", 1)], "", 10);
        assert_eq!(made.files.keys().collect::<Vec<_>>(), ["b/c/d/e"]);
        assert_eq!(made.left_out[&Odd::Directory].0, 2);
    }

    proptest! {
        #[test]
        fn no_key_leads_out_of_the_view(keys in prop::collection::vec("(\\.{0,3}|[ab/\\x00\n%~]{0,3}|/){0,6}", 0..12)) {
            let made = PathLayout::of(keys.iter().map(|key| object(key, 0)), "", 10);
            let known = made.files.len() as u64 + made.directories.len() as u64 + made.left_out.values().map(|(count, _)| count).sum::<u64>();
            let different: BTreeSet<&String> = keys.iter().collect();
            prop_assert!(known >= different.len() as u64, "each is a file, a directory or left out");
            for path in made.files.keys().chain(made.directories.iter().filter(|path| !path.is_empty())) {
                prop_assert!(Path::new(path).components().all(|part| matches!(part, Component::Normal(_))), "{path:?}");
                prop_assert!(!path.contains("//") && !path.ends_with('/') && !path.contains('\0'), "{path:?}");
                prop_assert!(above(path).all(|parent| !made.files.contains_key(parent)), "{path:?} lies below a file");
            }
        }
    }
}
