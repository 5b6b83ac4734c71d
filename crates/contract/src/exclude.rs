//! Patterns of files that are never copied, nor answered from a copy (`--exclude`).
//!
//! A pattern that begins with `/` is compared with the absolute path; one with a slash elsewhere, with the path below a
//! source; one without a slash, with each name below a source. `*` and `?` stand for characters of one name, `[a-z]`
//! and `[!a-z]` for one character, `**` for any number of directories, and `\` makes the next character literal. A
//! final slash is ignored. A pattern that matches a directory matches everything below it.

/// Largest length in bytes of all patterns of a run, each counted with one byte more.
pub const EXCLUDES_BYTES_MAX: usize = 4096;

/// Patterns of a run.
#[derive(Clone, Copy, Debug)]
pub struct Excludes<'a> {
    /// Patterns, each followed by a NUL.
    text: &'a [u8],
}

impl<'a> Excludes<'a> {
    /// Wraps patterns, each followed by a NUL.
    pub const fn new(text: &'a [u8]) -> Self {
        Self { text }
    }

    /// Returns whether there is no pattern.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns whether a pattern matches an absolute path or a directory above it. `roots` are the sources, without a
    /// final slash. For a path outside every source, absolute patterns are compared with the path, and patterns without
    /// a slash with its names.
    pub fn matches<'r>(&self, path: &[u8], roots: &(impl Iterator<Item = &'r [u8]> + Clone)) -> bool {
        self.patterns().any(|pattern| {
            if pattern.first() == Some(&b'/') {
                return matches_start(pattern, path);
            }
            let is_name = !pattern.contains(&b'/');
            let mut is_below = false;
            for root in roots.clone() {
                if let Some(below) = path.strip_prefix(root).and_then(|rest| rest.strip_prefix(b"/")) {
                    is_below = true;
                    if matches_below(pattern, is_name, below) {
                        return true;
                    }
                }
            }
            !is_below && is_name && matches_below(pattern, true, path)
        })
    }

    fn patterns(&self) -> impl Iterator<Item = &'a [u8]> {
        let patterns = self.text.split(|byte| *byte == 0).map(without_final_slashes);
        patterns.filter(|pattern| !pattern.is_empty())
    }
}

/// Checks one pattern as a user writes it.
///
/// # Errors
/// The fault and its remedy.
pub fn check(pattern: &[u8]) -> Result<(), &'static str> {
    if without_final_slashes(pattern).is_empty() {
        return Err("is empty; write for example *.mdb or logs/**");
    }
    if pattern.contains(&0) {
        return Err("has a zero byte, which no path has; remove it");
    }
    if pattern.len() >= EXCLUDES_BYTES_MAX {
        return Err("is longer than 4095 bytes; write a shorter one with * or **");
    }
    let mut components = pattern.split(|byte| *byte == b'/');
    if components.any(|name| name == b"." || name == b"..") {
        return Err("has a component '.' or '..', which is never matched; write the path without it");
    }
    let mut at = 0;
    while let Some(rest) = pattern.get(at..).filter(|rest| !rest.is_empty()) {
        at += match rest.first() {
            Some(b'\\') if rest.len() == 1 => return Err(r"ends with a backslash; write \\ for the character itself"),
            Some(b'\\') => 2,
            Some(b'[') => match class(rest, b'a') {
                Some((len, _)) if rest.get(..len).is_some_and(<[u8]>::is_ascii) => len,
                Some(_) => return Err("has a character in [...] that is not ASCII; write ? for it"),
                None => return Err(r"has a [ without its ]; write \[ for the character itself"),
            },
            _ => 1,
        };
    }
    Ok(())
}

fn without_final_slashes(mut pattern: &[u8]) -> &[u8] {
    while let Some(rest) = pattern.strip_suffix(b"/") {
        pattern = rest;
    }
    pattern
}

fn matches_below(pattern: &[u8], is_name: bool, below: &[u8]) -> bool {
    if matches_start(pattern, below) {
        return true;
    }
    let slashes = below.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    is_name
        && slashes
            .filter_map(|(at, _)| below.get(at + 1..))
            .any(|rest| matches_start(pattern, rest))
}

/// Returns whether a pattern matches a path, or its start up to a slash. Going back to the last `*`, then to the last
/// `**/`, is enough: an earlier one that took more would leave less for what follows.
fn matches_start(pattern: &[u8], path: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    let mut directories: Option<(usize, usize)> = None;
    loop {
        let rest = pattern.get(p..).unwrap_or(&[]);
        let here = path.get(t..).unwrap_or(&[]);
        let begins_name = p
            .checked_sub(1)
            .and_then(|before| pattern.get(before))
            .is_none_or(|byte| *byte == b'/');
        if begins_name && rest == b"**" && !here.is_empty() {
            return true;
        }
        if rest.is_empty() && here.first().is_none_or(|byte| *byte == b'/') {
            return true;
        }
        if begins_name && rest.starts_with(b"**/") {
            p += 3;
            (star, directories) = (None, Some((p, t)));
            continue;
        }
        if rest.first() == Some(&b'*') {
            p += 1;
            star = Some((p, t));
            continue;
        }
        if let Some((in_pattern, in_path)) = one(rest, here) {
            (p, t) = (p + in_pattern, t + in_path);
            continue;
        }
        if let Some((behind, from)) = star
            && path.get(from).is_some_and(|byte| *byte != b'/')
        {
            (p, t) = (behind, from + 1);
            star = Some((p, t));
        } else if let Some((behind, from)) = directories
            && let Some(slash) = path.iter().skip(from).position(|byte| *byte == b'/')
        {
            (p, t) = (behind, from + slash + 1);
            (star, directories) = (None, Some((p, t)));
        } else {
            return false;
        }
    }
}

/// Matches one character; returns its length in the pattern and in the path.
fn one(pattern: &[u8], path: &[u8]) -> Option<(usize, usize)> {
    let byte = *path.first()?;
    match *pattern.first()? {
        b'?' if byte != b'/' => Some((1, character(path))),
        b'[' if byte != b'/' => class(pattern, byte).filter(|found| found.1).map(|(len, _)| (len, character(path))),
        b'\\' => (pattern.get(1) == Some(&byte)).then_some((2, 1)),
        b'?' | b'[' => None,
        literal => (literal == byte).then_some((1, 1)),
    }
}

/// Returns the length in bytes of the UTF-8 character that a path begins with; 1 for any other byte.
fn character(path: &[u8]) -> usize {
    let is_led = path.first().is_some_and(|byte| *byte >= 0xC0);
    let follow = path.iter().skip(1).take_while(|byte| **byte & 0xC0 == 0x80);
    if is_led { 1 + follow.take(3).count() } else { 1 }
}

/// Returns the length of the class that a pattern begins with, and whether a byte is in it; `None` if it has no end.
fn class(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    let mut at = 1;
    let is_negated = matches!(pattern.get(at)?, b'!' | b'^');
    at += usize::from(is_negated);
    let (mut is_first, mut is_in) = (true, false);
    loop {
        if *pattern.get(at)? == b']' && !is_first {
            return Some((at + 1, is_in != is_negated));
        }
        is_first = false;
        let (low, next) = class_member(pattern, at)?;
        at = next;
        let mut high = low;
        if pattern.get(at) == Some(&b'-') && *pattern.get(at + 1)? != b']' {
            (high, at) = class_member(pattern, at + 1)?;
        }
        is_in |= (low..=high).contains(&byte);
    }
}

/// Returns a member of a class, and where the next one begins.
fn class_member(pattern: &[u8], at: usize) -> Option<(u8, usize)> {
    match *pattern.get(at)? {
        b'\\' => Some((*pattern.get(at + 1)?, at + 2)),
        byte => Some((byte, at + 1)),
    }
}
