//! Files that are replaced atomically.

use std::{
    ffi::OsString,
    fs::{self, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

/// Returns whether a file is a device or a pipe: it is written to, never replaced.
pub fn is_stream(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.file_type().is_char_device() || meta.file_type().is_fifo())
}

/// Writes a file of mode 0600 atomically.
pub fn write_private(file: &Path, text: &[u8]) -> io::Result<()> {
    write_whole(file, text, 0o600)
}

/// Writes a file of the given mode atomically: a reader sees the old content or the new one. A device or a pipe is
/// written in place.
pub fn write_whole(file: &Path, text: &[u8], mode: u32) -> io::Result<()> {
    if is_stream(file) {
        return OpenOptions::new().write(true).open(file)?.write_all(text);
    }
    let mut name = OsString::from(".");
    name.push(file.file_name().ok_or_else(|| io::Error::other("it has no name"))?);
    name.push(format!(".{}", std::process::id()));
    let partial = file.with_file_name(name);
    // A left-over of an earlier process of this number.
    let _ = fs::remove_file(&partial);
    let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
    out.write_all(text)
        .and_then(|()| out.set_permissions(Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&partial, file))
        .inspect_err(|_| {
            let _ = fs::remove_file(&partial);
        })
}
