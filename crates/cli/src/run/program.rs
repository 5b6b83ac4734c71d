//! Program of a run: found as a shell finds it, and examined for whether the preload library works in it.

use std::{
    ffi::{OsStr, OsString},
    fmt, fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use forebay_settings::{
    environment::Environment,
    user_error::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, UserError},
};
use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::run::{
    elf::{Executable, examine},
    library::LD_PRELOAD,
};

/// Scripts whose interpreter is a script: the kernel follows four.
const SCRIPTS_MAX: u32 = 5;
/// Directories that a shell searches without `PATH`.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";

/// A program that exists.
#[derive(Clone, Debug)]
pub struct Program {
    /// The file that is executed.
    pub path: PathBuf,
    /// The file that comes into memory in the end: a script's interpreter.
    pub image: PathBuf,
    /// Result of the check whether the preload library works in the program.
    pub cover: Cover,
}

/// Result of the check whether the preload library works in a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cover {
    /// It does.
    Covered,
    /// It does not, and the program runs all the same; what it starts may be covered.
    NotCovered(&'static str),
    /// It is a program of another machine or word size: its loader would complain about the library.
    Foreign,
    /// The program could not even start with it.
    Breaks(String),
}

impl Cover {
    /// Returns the reason why the preload library does not work in it, if it does not.
    pub fn why_not(&self) -> Option<&str> {
        match self {
            Self::Covered => None,
            Self::NotCovered(why) => Some(why),
            Self::Foreign => Some("it is a program of another machine or word size"),
            Self::Breaks(why) => Some(why),
        }
    }
}

impl fmt::Display for Cover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why_not() {
            None => f.write_str("covered"),
            Some(why) => write!(f, "not covered: {why}"),
        }
    }
}

impl Program {
    /// Finds `name` as a shell does, and looks at it.
    ///
    /// # Errors
    /// As a shell: 127 not found, 126 can't be executed.
    pub fn find(name: &OsStr, environment: &Environment) -> Result<Self, UserError> {
        let path = look_up(name, environment)?;
        let (image, cover) = see_through(&path, name, environment, SCRIPTS_MAX)?;
        Ok(Self { path, image, cover })
    }

    /// Finds out whether the program starts with the preload library. If its loader is not this command's own, the
    /// loader is asked: it may refuse the library, and then no program would run.
    pub fn try_library(&mut self, library: &Path) {
        if self.cover != Cover::Covered {
            return;
        }
        let loader = |path: &Path| match examine(path) {
            Ok(Executable::Dynamic { loader }) => loader.canonicalize().ok(),
            _ => None,
        };
        let own = std::env::current_exe().ok().and_then(|exe| loader(&exe));
        if own.is_some() && own == loader(&self.image) {
            return;
        }
        let complaints = |preload: Option<&Path>| missing(&self.image, preload);
        let before = complaints(None);
        if let Some(complaint) = complaints(Some(library)).into_iter().find(|complaint| !before.contains(complaint)) {
            let library = library.display();
            self.cover = Cover::Breaks(format!("its C library is another than {library} was made for ({complaint})"));
        }
    }
}

/// Returns the libraries that a program's loader does not find, in its words. The loader lists libraries and starts
/// nothing.
fn missing(program: &Path, preload: Option<&Path>) -> Vec<String> {
    let mut command = Command::new(program);
    command
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .env_remove(LD_PRELOAD)
        .stdin(Stdio::null());
    preload.map(|library| command.env(LD_PRELOAD, library));
    let Ok(listing) = command.output() else { return Vec::new() };
    let said = [listing.stdout, listing.stderr].concat();
    let lines = String::from_utf8_lossy(&said)
        .lines()
        .map(|line| line.trim().to_owned())
        .collect::<Vec<_>>();
    lines
        .into_iter()
        .filter(|line| ["not found", "cannot be", "error"].iter().any(|word| line.contains(word)))
        .collect()
}

fn look_up(name: &OsStr, environment: &Environment) -> Result<PathBuf, UserError> {
    let shown = name.to_string_lossy();
    if name.is_empty() {
        return Err(UserError::with_status(EXIT_NOT_FOUND, format_args!("'': command not found")));
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match executable(&path) {
            Ok(()) => Ok(path),
            Err(io::ErrorKind::NotFound) => Err(UserError::with_status(
                EXIT_NOT_FOUND,
                format_args!("{shown}: No such file or directory"),
            )),
            Err(io::ErrorKind::IsADirectory) => Err(UserError::with_status(EXIT_NOT_EXECUTABLE, format_args!("{shown}: Is a directory"))),
            Err(io::ErrorKind::NotADirectory) => Err(UserError::with_status(
                EXIT_NOT_EXECUTABLE,
                format_args!("{shown}: Not a directory"),
            )),
            Err(_) => Err(UserError::with_status(
                EXIT_NOT_EXECUTABLE,
                format_args!("{shown}: Permission denied"),
            )),
        };
    }
    let search = environment.get("PATH").unwrap_or(OsStr::new(PATH_DEFAULT));
    let mut denied = None;
    for dir in std::env::split_paths(search) {
        // An empty entry is the current directory.
        let path = if dir.as_os_str().is_empty() {
            Path::new(".").join(name)
        } else {
            dir.join(name)
        };
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(io::ErrorKind::PermissionDenied) => denied = denied.or(Some(path)),
            Err(_) => {}
        }
    }
    Err(match denied {
        Some(path) => UserError::with_status(EXIT_NOT_EXECUTABLE, format_args!("{}: Permission denied", path.display())),
        None => UserError::with_status(EXIT_NOT_FOUND, format_args!("{shown}: command not found")),
    })
}

fn executable(path: &Path) -> Result<(), io::ErrorKind> {
    let meta = fs::metadata(path).map_err(|error| error.kind())?;
    if meta.is_dir() {
        return Err(io::ErrorKind::IsADirectory);
    }
    accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).map_err(|_| io::ErrorKind::PermissionDenied)
}

/// Follows a script to its interpreter, and examines whether the preload library works in that.
fn see_through(path: &Path, name: &OsStr, environment: &Environment, scripts_left: u32) -> Result<(PathBuf, Cover), UserError> {
    let own = |cover| Ok((path.to_owned(), cover));
    if scripts_left == 0 {
        let shown = name.to_string_lossy();
        return Err(UserError::with_status(
            EXIT_NOT_EXECUTABLE,
            format_args!("{shown}: Too many levels of symbolic links"),
        ));
    }
    if gains_rights(path) {
        return own(Cover::NotCovered(
            "it runs with the rights of another user or group, so the system lets nothing be preloaded",
        ));
    }
    match examine(path) {
        Ok(Executable::Dynamic { loader }) => own(cover_by_loader(&loader)),
        Ok(Executable::Static) => own(Cover::NotCovered(
            "it is linked statically (as Go programs are), so nothing can be preloaded",
        )),
        Ok(Executable::Foreign) => own(Cover::Foreign),
        // A shell takes a file without a first line of this kind for a script of its own.
        Ok(Executable::Plain) => see_through(Path::new("/bin/sh"), name, environment, scripts_left - 1),
        Ok(Executable::Script(words)) => {
            let Some(interpreter) = words.first() else {
                return see_through(Path::new("/bin/sh"), name, environment, scripts_left - 1);
            };
            let interpreter = Path::new(&**interpreter);
            if executable(interpreter).is_err() {
                let line = format!(
                    "{}: cannot execute: required file not found ({})",
                    name.to_string_lossy(),
                    interpreter.display()
                );
                return Err(UserError::with_status(EXIT_NOT_FOUND, line));
            }
            let through_env = interpreter.file_name() == Some(OsStr::new("env"));
            let named = words.get(1).filter(|_| through_env).and_then(|argument| program_of_env(argument));
            match named.map(|named| look_up(&named, environment)) {
                Some(Ok(named)) => see_through(&named, name, environment, scripts_left - 1),
                // env itself will say so.
                Some(Err(_)) | None => see_through(interpreter, name, environment, scripts_left - 1),
            }
        }
        // It can be executed, and not be read.
        Err(_) => own(Cover::Covered),
    }
}

/// The program in `[-S] [NAME=VALUE...] PROGRAM ...`.
fn program_of_env(argument: &OsStr) -> Option<OsString> {
    let text = argument.to_str()?;
    let mut words = text.split_ascii_whitespace().map(|word| word.strip_prefix("-S").unwrap_or(word));
    words
        .find(|word| !word.is_empty() && !word.starts_with('-') && !word.contains('='))
        .map(OsString::from)
}

fn cover_by_loader(loader: &Path) -> Cover {
    let name = loader.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with("ld-linux") || name.starts_with("ld64.so") || (name.starts_with("ld-2.") && name.ends_with(".so")) {
        Cover::Covered
    } else {
        let which = if name.starts_with("ld-musl") { "musl" } else { "not glibc" };
        Cover::Breaks(format!("its C library is {which} (loader {})", loader.display()))
    }
}

fn gains_rights(path: &Path) -> bool {
    let Ok(meta) = fs::metadata(path) else { return false };
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    (meta.mode() & 0o4000 != 0 && meta.uid() != user) || (meta.mode() & 0o2010 == 0o2010 && meta.gid() != group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn write(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("sub")).unwrap();
        write(&at("plain"), "data", 0o644);
        write(&at("sub/plain"), "echo", 0o755);
        write(&at("denied"), "data", 0o644);
        let path = format!("{}:{}", dir.path().display(), at("sub").display());
        let environment = Environment::of([("PATH", path.as_str())]);
        let status = |name: &str| Program::find(OsStr::new(name), &environment).map_err(|refusal| refusal.status);
        assert_eq!(
            status("plain").unwrap().path,
            at("sub/plain"),
            "what can't be executed is passed over"
        );
        assert_eq!(status("denied").unwrap_err(), 126);
        assert_eq!(status("sub").unwrap_err(), 127, "a directory is not a program");
        assert_eq!(status("missing").unwrap_err(), 127);
        assert_eq!(status("/missing/x").unwrap_err(), 127);
        assert_eq!(status(dir.path().to_str().unwrap()).unwrap_err(), 126);
        assert_eq!(status("").unwrap_err(), 127);
    }

    #[test]
    fn scripts_are_seen_through() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        let environment = Environment::of([("PATH", "/usr/bin:/bin")]);
        let find = || Program::find(script.as_os_str(), &environment);
        write(&script, "#!/usr/bin/env -S A=b sh -e\n", 0o755);
        assert_eq!(find().unwrap().image.file_name(), Some(OsStr::new("sh")));
        write(&script, "#!/no/such/interpreter\n", 0o755);
        assert_eq!(find().unwrap_err().status, 127);
        write(&script, &format!("#!{}\n", script.display()), 0o755);
        assert_eq!(find().unwrap_err().status, 126);
    }

    #[test]
    fn other_c_libraries_are_told_apart() {
        assert_eq!(cover_by_loader(Path::new("/lib64/ld-linux-x86-64.so.2")), Cover::Covered);
        assert_eq!(cover_by_loader(Path::new("/nix/store/x/lib/ld-linux-aarch64.so.1")), Cover::Covered);
        assert!(matches!(cover_by_loader(Path::new("/lib/ld-musl-x86_64.so.1")), Cover::Breaks(why) if why.contains("musl")));
    }
}
