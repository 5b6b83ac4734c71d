//! Profiles: the files that all tools for S3 read.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use zeroize::Zeroize;

use crate::{Error, limits, variables::VariableLookup};

/// Never printed.
pub(crate) struct SecretText(pub(crate) String);

impl std::fmt::Debug for SecretText {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("SecretText")
    }
}

impl Drop for SecretText {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Keys of the chosen profile; `~/.aws/credentials` takes precedence over `~/.aws/config`.
pub(crate) struct Profile {
    name: String,
    keys: BTreeMap<String, String>,
}

impl Profile {
    pub(crate) fn read(variables: VariableLookup<'_>) -> Result<Self, Error> {
        let named = variables("AWS_PROFILE").or_else(|| variables("AWS_DEFAULT_PROFILE"));
        let name = named.clone().unwrap_or_else(|| "default".into());
        let home = variables("HOME").map(PathBuf::from);
        let path = |variable: &str, file: &str| {
            let named = variables(variable).map(PathBuf::from);
            named.or_else(|| Some(home.as_ref()?.join(".aws").join(file)))
        };
        let mut keys = BTreeMap::new();
        let mut is_there = false;
        // In `config` all profiles but the default one have a word before their name.
        let in_config = if name == "default" {
            name.clone()
        } else {
            format!("profile {name}")
        };
        let files = [
            (path("AWS_CONFIG_FILE", "config"), &in_config),
            (path("AWS_SHARED_CREDENTIALS_FILE", "credentials"), &name),
        ];
        for (path, head) in files {
            let Some(path) = path else { continue };
            let text = match read_small(&path) {
                Ok(text) => SecretText(text),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(Error::disk(&path, "read", error)),
            };
            is_there |= collect(&text.0, head, &mut keys);
        }
        if named.is_some() && !is_there {
            return Err(Error::Input(format!(
                "$AWS_PROFILE: there is no profile '{name}' in ~/.aws/credentials or ~/.aws/config; name one that is there"
            )));
        }
        Ok(Self { name, keys })
    }

    pub(crate) fn get(&self, key: &str) -> Option<String> {
        self.keys.get(key).cloned()
    }

    /// Refuses settings that would name other credentials, since ignoring them silently would be wrong.
    pub(crate) fn refuse_what_is_not_read(&self) -> Result<(), Error> {
        for key in ["credential_process", "role_arn", "sso_session", "sso_start_url", "login_session"] {
            if self.keys.contains_key(key) {
                return Err(Error::Input(format!(
                    "the profile '{}' has {key}, which is not supported; write eval \"$(aws configure export-credentials --format env)\" before this",
                    self.name
                )));
            }
        }
        Ok(())
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        self.keys.values_mut().for_each(Zeroize::zeroize);
    }
}

/// Collects the keys of the section with this name. Returns whether there was one. Indented lines belong to the key
/// before them.
fn collect(text: &str, section: &str, keys: &mut BTreeMap<String, String>) -> bool {
    let (mut is_inside, mut is_there) = (false, false);
    for line in text.lines() {
        let bare = line.trim();
        if let Some(head) = bare.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            is_inside = head.split_whitespace().collect::<Vec<_>>().join(" ") == section;
            is_there |= is_inside;
        } else if is_inside
            && !line.starts_with([' ', '\t'])
            && !bare.starts_with(['#', ';'])
            && let Some((key, value)) = bare.split_once('=')
            && !value.trim().is_empty()
        {
            keys.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    is_there
}

/// Reads a small file as text.
pub(crate) fn read_small(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(limits::PROFILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}
