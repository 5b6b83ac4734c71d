//! Kind of an executable file, read from its first bytes.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::unix::{ffi::OsStrExt, fs::FileExt},
    path::{Path, PathBuf},
};

/// Program headers that are looked at: real programs have a dozen.
const HEADERS_MAX: u16 = 128;
/// The kernel's limit for the first line of a script.
const SCRIPT_LINE_MAX: usize = 256;
const PATH_MAX: u64 = 4096;
const PT_INTERP: u32 = 3;

/// Kind of an executable file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Executable {
    /// A program of this machine that a dynamic loader starts.
    Dynamic {
        /// The loader.
        loader: PathBuf,
    },
    /// A program of this machine that no loader starts.
    Static,
    /// A program of another machine or word size.
    Foreign,
    /// A script with its interpreter and that one's arguments.
    Script(Vec<Box<OsStr>>),
    /// Neither: a shell runs it as a script of its own.
    Plain,
}

/// Reads what `path` is.
///
/// # Errors
/// When it can't be read, or is cut short.
pub fn examine(path: &Path) -> io::Result<Executable> {
    let mut file = File::open(path)?;
    let mut start = Vec::new();
    file.by_ref().take(SCRIPT_LINE_MAX as u64).read_to_end(&mut start)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        return Ok(Executable::Script(script_words(line)));
    }
    if !start.starts_with(b"\x7fELF") {
        return Ok(Executable::Plain);
    }
    let (class, order) = (start.get(4).copied(), start.get(5).copied());
    if class != Some(2)
        || order != Some(if cfg!(target_endian = "little") { 1 } else { 2 })
        || number::<2>(&start, 18) != Some(own_machine())
    {
        return Ok(Executable::Foreign);
    }
    let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, "the program's header is cut short");
    let table = number::<8>(&start, 32).ok_or_else(cut)?;
    let size = number::<2>(&start, 54).ok_or_else(cut)?;
    let headers = number::<2>(&start, 56).ok_or_else(cut)?;
    for at in 0..headers.min(u64::from(HEADERS_MAX)) {
        let mut header = [0; 56];
        file.read_exact_at(&mut header, table.saturating_add(at * size))?;
        if number::<4>(&header, 0) == Some(u64::from(PT_INTERP)) {
            let (offset, len) = (number::<8>(&header, 8).ok_or_else(cut)?, number::<8>(&header, 32).ok_or_else(cut)?);
            let mut loader = vec![0; len.min(PATH_MAX) as usize];
            file.read_exact_at(&mut loader, offset)?;
            let name = loader.split(|byte| *byte == 0).next().unwrap_or_default();
            return Ok(Executable::Dynamic {
                loader: OsStr::from_bytes(name).into(),
            });
        }
    }
    Ok(Executable::Static)
}

/// The interpreter and its argument: the kernel passes all that follows as one.
fn script_words(line: &[u8]) -> Vec<Box<OsStr>> {
    let line = line.trim_ascii();
    let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    let (interpreter, argument) = line.split_at(end);
    let argument = argument.trim_ascii();
    [interpreter, argument]
        .into_iter()
        .filter(|word| !word.is_empty())
        .map(|word| OsStr::from_bytes(word).into())
        .collect()
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let field: [u8; N] = bytes.get(at..at + N)?.try_into().ok()?;
    let fold = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
    Some(if cfg!(target_endian = "little") {
        field.iter().rev().fold(0, fold)
    } else {
        field.iter().fold(0, fold)
    })
}

/// `e_machine` of programs that this one can be preloaded into.
fn own_machine() -> u64 {
    match std::env::consts::ARCH {
        "x86_64" => 62,
        "aarch64" => 183,
        "riscv64" => 243,
        "powerpc64" => 21,
        "s390x" => 22,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn this_test_is_a_dynamic_program() {
        let own = examine(&std::env::current_exe().unwrap()).unwrap();
        assert!(matches!(own, Executable::Dynamic { .. }), "{own:?}");
    }

    #[test]
    fn scripts_and_oddities_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let examine_text = |text: &[u8]| {
            let path = dir.path().join("x");
            fs::write(&path, text).unwrap();
            examine(&path)
        };
        let words = |words: &[&str]| Executable::Script(words.iter().map(|word| OsStr::new(word).into()).collect());
        assert_eq!(
            examine_text(b"#! /usr/bin/env -S python3 -u \nx").unwrap(),
            words(&["/usr/bin/env", "-S python3 -u"])
        );
        assert_eq!(examine_text(b"#!/bin/sh").unwrap(), words(&["/bin/sh"]));
        assert_eq!(examine_text(b"#!\n").unwrap(), words(&[]));
        assert_eq!(examine_text(b"echo hi\n").unwrap(), Executable::Plain);
        assert_eq!(examine_text(b"").unwrap(), Executable::Plain);
        assert_eq!(examine_text(b"\x7fELF\x01\x01").unwrap(), Executable::Foreign);
        let whole = fs::read(std::env::current_exe().unwrap()).unwrap();
        for cut in 5..64 {
            let cut_short = examine_text(whole.get(..cut).unwrap());
            assert!(cut_short.is_err() || cut_short.unwrap() == Executable::Foreign, "{cut}");
        }
    }
}
