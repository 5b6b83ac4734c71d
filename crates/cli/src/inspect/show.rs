//! `forebay config show`: each setting, its value and where that comes from, as a configuration file would have it.

use std::{fmt::Write as _, path::Path};

use forebay_settings::{
    config::{Config, TierOrder, WrittenSettings},
    environment::Environment,
    mounts::Mounts,
    places, text,
    tiers::used,
    user_error::UserError,
};
use serde_json::Value;

use crate::run::{record::settings, tier_order};

/// The settings.
///
/// # Errors
/// A configuration that can't be read.
pub fn show(environment: &Environment) -> Result<String, UserError> {
    let mut config = Config::resolve(&WrittenSettings::default(), environment)?;
    let runtime_dir = places::runtime_dir(&config, environment, &Mounts::read());
    let state_dir = places::state_dir(&config, environment, &runtime_dir.value);
    (config.own_paths.runtime.value, config.own_paths.state.value) = (Some(runtime_dir.value), Some(state_dir.value.clone()));
    let files: Vec<_> = config.files.iter().map(|file| file.display().to_string()).collect();
    let mut out = match files.as_slice() {
        [] => "# no configuration file\n".into(),
        [one] => format!("# configuration file: {one}\n"),
        several => format!("# configuration files, the first before the second: {}\n", several.join(", ")),
    };
    let Value::Object(settings) = settings(&config) else {
        return Ok(out);
    };
    for (name, setting) in &settings {
        let line = match (&setting["value"], name.as_str()) {
            (Value::Array(list), "source") if list.is_empty() => "source = []  # every network file system".into(),
            (Value::Array(list), "tier") if list.is_empty() => "tier = []  # the scheduler's scratch, else the largest local disk".into(),
            (Value::Array(list), "view") if list.is_empty() => "view = []  # none".into(),
            (Value::Array(list), "exclude") if list.is_empty() => "exclude = []  # nothing is excluded".into(),
            (Value::Null, "ram") => "# ram: none".into(),
            (Value::Null, "peers.dir") => format!("# peers.dir: {}", state_dir.value.join("peers").display()),
            (Value::Null, "peers.interface") => "# peers.interface: the one that leads to the first node".into(),
            (Value::Null, "peers.secret") => "# peers.secret: a new one for each job, in peers.dir".into(),
            // Without a value it is not written down.
            (Value::Null, _) => format!("# record: {}", Path::new(&state_dir.value).join("runs").display()),
            (value, _) => format!("{name} = {value}"),
        };
        let origin = setting["origin"].as_str().unwrap_or_default();
        let _ = writeln!(out, "{line:<48}  # {origin}");
    }
    if config.tier_order.value == TierOrder::Speed {
        for tier in used::known(&state_dir.value) {
            let words = tier
                .read_time
                .map_or_else(|| "not measured yet".into(), |time| tier_order::words(time, true));
            let _ = writeln!(out, "# {}: {words}", text::of_path(&tier.setting.dir));
        }
    }
    Ok(out)
}
