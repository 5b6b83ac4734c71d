//! A plan file as keys and values, whatever they mean: reading it, laying `--set` over it, and refusing what is
//! unknown.

use std::{collections::BTreeMap, fmt, ops::RangeInclusive, path::Path};

use toml::Value;

use super::units::{parse_per_second, parse_rate, parse_time};
use forebay_settings::{size::parse_size, user_error::UserError};

/// A key that a plan file may hold.
#[derive(Clone, Copy, Debug)]
pub struct PlanKey {
    /// Table and name, such as `cluster.nodes`.
    pub name: &'static str,
    /// An example value as it is written in TOML.
    pub example: &'static str,
}

/// Every key. `docs/planning.md` says what each means; a test holds the two together.
pub const KEYS: [PlanKey; 30] = [
    key("cluster.nodes", "8"),
    key("cluster.gpus", "8"),
    key("cluster.cache", "\"40 GB\""),
    key("cluster.threads", "64"),
    key("cluster.loading_threads", "16"),
    key("cluster.memory", "\"20 GB/s\""),
    key("cluster.link", "\"200 Gbit/s\""),
    key("cluster.link_latency", "\"50 us\""),
    key("source.bandwidth", "\"2 GB/s\""),
    key("source.requests", "\"40000 /s\""),
    key("source.stream", "\"500 MB/s\""),
    key("source.latency", "\"1 ms\""),
    key("source.tail", "0.5"),
    key("dataset.samples", "1281167"),
    key("dataset.size", "\"135 GB\""),
    key("dataset.sigma", "0.5"),
    key("dataset.listing", "\"sizes.txt\""),
    key("job.batch", "32"),
    key("job.step", "\"120 ms\""),
    key("job.epochs", "3"),
    key("job.drop_last", "false"),
    key("job.order", "\"torch\""),
    key("job.seed", "0"),
    key("preprocessing.seconds", "\"4 ms\""),
    key("preprocessing.saturates_at", "48"),
    key("preprocessing.decline", "0.01"),
    key("loader.window", "4"),
    key("loader.horizon", "2"),
    key("loader.prepared", "2"),
    key("loader.hedge", "0.01"),
];

const fn key(name: &'static str, example: &'static str) -> PlanKey {
    PlanKey { name, example }
}

/// Table below which `forebay profile` writes its measurements; see `profile::record`.
const MEASURED: &str = "measured";

/// Table that a data loader reads; see `carry_out`. The planner reads nothing there.
pub const RUN: &str = "run";

/// The values that were given, by key.
#[derive(Clone, Debug)]
pub struct PlanKeys {
    /// Origin of the keys, as messages name it.
    pub file: String,
    values: BTreeMap<String, Value>,
    /// Content of a profile beside the keys.
    pub measured: Option<Value>,
}

impl PlanKeys {
    /// Reads a plan file's text, and lays `KEY=VALUE` settings over it.
    ///
    /// # Errors
    /// Invalid TOML; an unknown key, with the nearest known one; a setting without `=`.
    pub fn read(file: &Path, text: &str, settings: &[String]) -> Result<Self, UserError> {
        let name = file.display().to_string();
        let table: toml::Table = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            let line = text.get(..start).unwrap_or_default().matches('\n').count() + 1;
            UserError::bad_input(format_args!("{name}:{line}: {}", error.message()))
        })?;
        let mut keys = Self {
            file: name,
            values: BTreeMap::new(),
            measured: None,
        };
        for (section, value) in table {
            match value {
                value if section == MEASURED => keys.measured = Some(value),
                // For the loader.
                Value::Table(_) if section == RUN => {}
                Value::Table(inner) if is_section(&section) => {
                    for (key, value) in inner {
                        keys.insert(format!("{section}.{key}"), value)?;
                    }
                }
                value => keys.insert(section, value)?,
            }
        }
        for setting in settings {
            let refuse = || UserError::bad_input(format_args!("--set {setting}: write KEY=VALUE, such as --set cluster.nodes=8"));
            let (key, value) = setting.split_once('=').ok_or_else(refuse)?;
            // A number or true or false as in the file; anything else is text, so that nobody has to quote quotes.
            let value = value.trim();
            let value = toml::from_str::<toml::Table>(&format!("value = {value}"))
                .ok()
                .and_then(|mut table| table.remove("value"))
                .filter(|value| !value.is_table() && !value.is_array())
                .unwrap_or_else(|| Value::String(value.to_owned()));
            keys.insert(key.trim().to_owned(), value)?;
        }
        Ok(keys)
    }

    fn insert(&mut self, key: String, value: Value) -> Result<(), UserError> {
        if KEYS.iter().any(|known| known.name == key) {
            self.values.insert(key, value);
            return Ok(());
        }
        let (section, _) = key.split_once('.').unwrap_or((&key, ""));
        let mend = match nearest(&key) {
            Some(near) => format!("did you mean {near}?"),
            None if is_section(section) => format!("[{section}] may have {}", names_of(section)),
            None => "there may be [cluster], [source], [dataset], [job], [preprocessing] and [loader]".into(),
        };
        Err(UserError::bad_input(format_args!("{}: there is no key {key}; {mend}", self.file)))
    }

    /// Returns whether a key was given.
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// A refusal of a key's value: what was given, and what is allowed.
    pub fn refuse(&self, key: &str, value: &dyn fmt::Display, allowed: &str) -> UserError {
        UserError::bad_input(format_args!("{}: {key} = {value}: {allowed}", self.file))
    }

    /// A refusal of a key that has to be there.
    pub fn missing(&self, key: &str) -> UserError {
        let example = KEYS.iter().find(|known| known.name == key).map_or("", |known| known.example);
        let (section, name) = key.split_once('.').unwrap_or(("", key));
        let bare = example.trim_matches('"');
        UserError::bad_input(format_args!(
            "{}: {key} is missing; write {name} = {example} or the like below [{section}], or give --set '{key}={bare}'",
            self.file
        ))
    }

    /// A whole number within these limits.
    ///
    /// # Errors
    /// Anything else: key, value and what is allowed.
    pub fn count(&self, key: &str, allowed: RangeInclusive<u64>) -> Result<Option<u64>, UserError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        if let Some(number) = number.filter(|number| allowed.contains(number)) {
            return Ok(Some(number));
        }
        let words = format!("a whole number from {} to {} is allowed", allowed.start(), allowed.end());
        Err(self.refuse(key, value, &words))
    }

    /// A number within these limits.
    ///
    /// # Errors
    /// Anything else: key, value and what is allowed.
    pub fn number(&self, key: &str, allowed: RangeInclusive<f64>) -> Result<Option<f64>, UserError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        #[expect(clippy::cast_precision_loss, reason = "compared with small limits")]
        let number = value.as_float().or_else(|| value.as_integer().map(|number| number as f64));
        if let Some(number) = number.filter(|number| allowed.contains(number)) {
            return Ok(Some(number));
        }
        let words = format!("a number from {} to {} is allowed", allowed.start(), allowed.end());
        Err(self.refuse(key, value, &words))
    }

    /// True or false.
    ///
    /// # Errors
    /// Anything else.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, UserError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        value
            .as_bool()
            .map(Some)
            .ok_or_else(|| self.refuse(key, value, "true or false is allowed"))
    }

    /// Text.
    ///
    /// # Errors
    /// Anything else.
    pub fn text(&self, key: &str) -> Result<Option<&str>, UserError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let example = KEYS.iter().find(|known| known.name == key).map_or("", |known| known.example);
        let words = format!("text is allowed, such as {example}");
        value.as_str().map(Some).ok_or_else(|| self.refuse(key, value, &words))
    }

    /// Bytes.
    ///
    /// # Errors
    /// An invalid size, one without a unit, or zero.
    pub fn size(&self, key: &str) -> Result<Option<u64>, UserError> {
        self.text(key)?.map(|text| parse_size(&self.what(key), text)).transpose()
    }

    /// Bytes a second.
    ///
    /// # Errors
    /// An invalid rate, one without a unit, or zero.
    pub fn rate(&self, key: &str) -> Result<Option<f64>, UserError> {
        self.text(key)?.map(|text| parse_rate(&self.what(key), text)).transpose()
    }

    /// Requests a second.
    ///
    /// # Errors
    /// As [`Self::rate`].
    pub fn per_second(&self, key: &str) -> Result<Option<f64>, UserError> {
        self.text(key)?.map(|text| parse_per_second(&self.what(key), text)).transpose()
    }

    /// Seconds.
    ///
    /// # Errors
    /// An invalid time, or one without a unit.
    pub fn time(&self, key: &str) -> Result<Option<f64>, UserError> {
        self.text(key)?.map(|text| parse_time(&self.what(key), text)).transpose()
    }

    fn what(&self, key: &str) -> String {
        format!("{}: {key}", self.file)
    }
}

fn is_section(name: &str) -> bool {
    KEYS.iter()
        .any(|key| key.name.split_once('.').is_some_and(|(section, _)| section == name))
}

fn names_of(section: &str) -> String {
    let names = KEYS.iter().filter_map(|key| key.name.split_once('.'));
    let names: Vec<&str> = names.filter(|(of, _)| *of == section).map(|(_, name)| name).collect();
    names.join(", ")
}

/// The known key that this one most likely was to be: one with a like name, best in the same table.
fn nearest(key: &str) -> Option<&'static str> {
    const ALIKE: f64 = 0.6;
    const SAME_TABLE: f64 = 0.1;
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    let likeness = |known: &str| {
        let (of, known) = known.split_once('.').unwrap_or(("", known));
        let bonus = if of == section { SAME_TABLE } else { 0.0 };
        (strsim::normalized_damerau_levenshtein(known, name), bonus)
    };
    let all = KEYS
        .iter()
        .map(|known| (likeness(known.name), known.name))
        .filter(|((alike, _), _)| *alike >= ALIKE);
    all.max_by(|((a, a_bonus), _), ((b, b_bonus), _)| (a + a_bonus).total_cmp(&(b + b_bonus)))
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<PlanKeys, UserError> {
        PlanKeys::read(Path::new("plan.toml"), text, &[])
    }

    fn line<T: fmt::Debug>(result: Result<T, UserError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn an_unknown_key_is_named_with_the_nearest() {
        assert_eq!(
            line(read("[job]\nbacth = 3\n")),
            "plan.toml: there is no key job.bacth; did you mean job.batch?"
        );
        assert_eq!(
            line(read("[source]\ncache = \"1 GB\"\n")),
            "plan.toml: there is no key source.cache; did you mean cluster.cache?"
        );
        let words = line(read("[job]\nzzz = 3\n"));
        assert!(
            words.ends_with("[job] may have batch, step, epochs, drop_last, order, seed"),
            "{words}"
        );
        assert!(read("[run]\npolicy = \"forebay\"\n").is_ok(), "the loader reads it");
        assert!(line(read("quux = 3\n")).contains("[cluster], [source]"));
        assert!(line(read("[cluster.nodes]\nx = 3\n").and_then(|keys| keys.count("cluster.nodes", 1..=9))).contains("cluster.nodes"));
        assert!(line(read("[job]\nbatch = \n")).starts_with("plan.toml:2: "));
    }

    #[test]
    fn a_value_that_is_none_is_named_with_what_is_allowed() {
        let keys = read("[cluster]\nnodes = 0\ncache = \"40\"\nlink = 3\n[job]\nstep = \"-1 ms\"\nbatch = \"8\"\n").unwrap();
        assert_eq!(
            line(keys.count("cluster.nodes", 1..=64)),
            "plan.toml: cluster.nodes = 0: a whole number from 1 to 64 is allowed"
        );
        assert!(line(keys.size("cluster.cache")).starts_with("plan.toml: cluster.cache: missing unit in '40'; use"));
        assert!(line(keys.rate("cluster.link")).contains("cluster.link = 3: text is allowed, such as \"200 Gbit/s\""));
        assert!(line(keys.time("job.step")).contains("job.step: invalid time '-1 ms'; write"));
        assert!(line(keys.count("job.batch", 1..=9)).contains("job.batch = \"8\""));
        let words = keys.missing("cluster.cache").to_string();
        assert!(
            words.contains("cache = \"40 GB\"") && words.contains("--set 'cluster.cache=40 GB'"),
            "{words}"
        );
    }

    #[test]
    fn settings_come_on_top() {
        let settings = ["cluster.nodes=8", "cluster.cache = 2 GB", "job.drop_last=true"].map(str::to_owned);
        let keys = PlanKeys::read(Path::new("p"), "[cluster]\nnodes = 1\n", &settings).unwrap();
        assert_eq!(keys.count("cluster.nodes", 1..=64).unwrap(), Some(8));
        assert_eq!(keys.size("cluster.cache").unwrap(), Some(2_000_000_000));
        assert_eq!(keys.flag("job.drop_last").unwrap(), Some(true));
        let bad = |setting: &str| line(PlanKeys::read(Path::new("p"), "", &[setting.to_owned()]));
        assert!(bad("cluster.nodes").contains("KEY=VALUE"));
        assert!(bad("cluster.node=3").contains("cluster.nodes"));
    }
}
