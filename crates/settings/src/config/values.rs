//! Values that have a form of their own: how they are written, and read.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
};

use forebay_agent::tiering::protocol::RunFreshness;
use forebay_policy::eviction::TierPolicy;

use super::{Origin, Setting};
use crate::{refusal::Refusal, size::parse_size};

/// Longest freshness in seconds: ten years. Who wants more means `immutable`.
const TTL_MAX_S: u64 = 10 * 366 * 86_400;

pub(crate) fn parse_ram(origin: &Origin, text: &OsStr) -> Result<Setting<u64>, Refusal> {
    Ok(Setting {
        value: parse_size(&origin.to_string(), &text.to_string_lossy())?,
        origin: origin.clone(),
    })
}

pub(super) fn parse_policy(origin: &Origin, text: &OsStr) -> Result<Setting<TierPolicy>, Refusal> {
    Ok(Setting {
        value: (text.to_string_lossy().parse()).map_err(|why: String| Refusal::bad_input(format_args!("{origin}: {why}")))?,
        origin: origin.clone(),
    })
}

pub(super) fn parse_freshness(origin: &Origin, text: &OsStr) -> Result<Setting<RunFreshness>, Refusal> {
    let text = text.to_string_lossy();
    let refuse = |why: &str| Refusal::bad_input(format_args!("{origin}: {why}; write ttl=SECONDS, immutable or on_open"));
    let value = match text.split_once('=') {
        None if text == "immutable" => RunFreshness::Immutable,
        None if text == "on_open" => RunFreshness::OnOpen,
        Some(("ttl", seconds)) => match seconds.parse() {
            Ok(0) => return Err(refuse("ttl=0 would ask at each open, which is on_open")),
            Ok(seconds) if seconds <= TTL_MAX_S => RunFreshness::Ttl(seconds),
            Ok(_) => return Err(refuse("that is longer than ten years, which is immutable")),
            Err(_) => return Err(refuse(&format!("'{seconds}' is no number of seconds"))),
        },
        _ => return Err(refuse(&format!("'{text}' is no freshness"))),
    };
    Ok(Setting {
        value,
        origin: origin.clone(),
    })
}

pub(super) fn parse_exclude(origin: &Origin, text: &OsStr) -> Result<OsString, Refusal> {
    match forebay_contract::exclude::check(text.as_bytes()) {
        Ok(()) => Ok(text.to_owned()),
        Err(why) => Err(Refusal::bad_input(format_args!(
            "{origin}: pattern '{}' {why}",
            text.to_string_lossy()
        ))),
    }
}

/// Returns a freshness as users write it.
pub fn freshness_text(freshness: RunFreshness) -> String {
    match freshness {
        RunFreshness::Ttl(seconds) => format!("ttl={seconds}"),
        RunFreshness::Immutable => "immutable".into(),
        RunFreshness::OnOpen => "on_open".into(),
    }
}

/// Order in which tiers are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TierOrder {
    /// The order in which they were named.
    #[default]
    Given,
    /// The fastest first, by what was measured.
    Speed,
}

impl TierOrder {
    /// Returns the order as users write it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Given => "given",
            Self::Speed => "speed",
        }
    }
}

pub(super) fn parse_tier_order(origin: &Origin, text: &OsStr) -> Result<Setting<TierOrder>, Refusal> {
    let text = text.to_string_lossy();
    let known = [TierOrder::Given, TierOrder::Speed];
    let value = known.into_iter().find(|order| order.text() == text);
    Ok(Setting {
        value: value.ok_or_else(|| Refusal::bad_input(format_args!("{origin}: '{text}' is no order of tiers; write given or speed")))?,
        origin: origin.clone(),
    })
}

/// Copies that are made before a program has opened a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefetch {
    /// Nothing.
    #[default]
    Off,
    /// Files beside those that were opened, while the source is idle.
    Idle,
}

impl Prefetch {
    /// Returns the choice as users write it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Idle => "idle",
        }
    }
}

pub(super) fn parse_prefetch(origin: &Origin, text: &OsStr) -> Result<Setting<Prefetch>, Refusal> {
    let text = text.to_string_lossy();
    let known = [Prefetch::Off, Prefetch::Idle];
    let value = known.into_iter().find(|prefetch| prefetch.text() == text);
    Ok(Setting {
        value: value.ok_or_else(|| Refusal::bad_input(format_args!("{origin}: '{text}' is no kind of prefetch; write off or idle")))?,
        origin: origin.clone(),
    })
}
