//! The environment, read once: nothing below reads it again.

use forebay_contract::env;
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::PathBuf,
};

/// Beginning of the names of Forebay's variables.
const PREFIX: &str = "FOREBAY_";
/// Letters of a name for each that may be wrong; in a name with more mistakes another one was meant.
const LETTERS_A_MISTAKE: usize = 3;

/// Variables and working directory at the start of the process.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
    /// The current directory, if there is one.
    pub directory: Option<PathBuf>,
}

impl Environment {
    /// Reads the environment of this process.
    pub fn current() -> Self {
        Self {
            variables: std::env::vars_os().collect(),
            directory: std::env::current_dir().ok(),
        }
    }

    /// Returns all variables, for a process that is to have the same ones.
    pub fn variables(&self) -> Vec<(OsString, OsString)> {
        self.variables.clone().into_iter().collect()
    }

    /// Takes variables that are given; relative paths stay relative.
    pub fn of<N: Into<OsString>, V: Into<OsString>>(variables: impl IntoIterator<Item = (N, V)>) -> Self {
        Self {
            variables: variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            directory: None,
        }
    }

    /// A variable that is set and not empty.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.variables
            .get(OsStr::new(name))
            .map(OsString::as_os_str)
            .filter(|value| !value.is_empty())
    }

    /// Returns each variable that is none of Forebay's and almost has the name of one, with that name.
    pub fn misspelt(&self) -> impl Iterator<Item = (&str, &'static str)> {
        let names = self.variables.keys().filter_map(|name| name.to_str());
        names.filter(|name| !env::NAMES.contains(name)).filter_map(|name| {
            let suffix = name.strip_prefix(PREFIX)?;
            let near = |known: &&&str| {
                known
                    .strip_prefix(PREFIX)
                    .is_some_and(|known| strsim::osa_distance(suffix, known) * LETTERS_A_MISTAKE <= suffix.len())
            };
            env::NAMES.iter().find(near).map(|known| (name, *known))
        })
    }

    /// A variable as an absolute path; what is not absolute is ignored, as the XDG rules ask for.
    pub fn absolute(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// The user's home directory, if the environment names one.
    pub fn home(&self) -> Option<PathBuf> {
        self.absolute("HOME")
    }

    /// `path` made absolute in the current directory, links and `..` left as they are.
    pub fn make_absolute(&self, path: &std::path::Path) -> PathBuf {
        match &self.directory {
            _ if path.is_absolute() => without_dots(path),
            Some(directory) => without_dots(&directory.join(path)),
            None => path.to_owned(),
        }
    }
}

/// Without `.`, doubled and final slashes. `..` stays: what it means depends on links.
fn without_dots(path: &std::path::Path) -> PathBuf {
    path.components().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_variables_are_found_and_other_ones_left_alone() {
        let set = [
            "FOREBAY_PREFECTH",
            "FOREBAY_TEIR",
            "FOREBAY_TIER",
            "FOREBAY_CI",
            "FOREBAY_",
            "FOREBAYS",
            "PREFETCH",
        ];
        let environment = Environment::of(set.map(|name| (name, "1")));
        let found: Vec<_> = environment.misspelt().collect();
        assert_eq!(found, [("FOREBAY_PREFECTH", env::PREFETCH), ("FOREBAY_TEIR", env::TIER)]);
    }
}
