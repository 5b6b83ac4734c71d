//! Values that have a form of their own: how they are written, and read.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
};

use forebay_contract::Freshness;
use forebay_policy::eviction::TierPolicy;

use super::SettingOrigin;
use crate::{size::parse_size, user_error::UserError};

/// Longest freshness in seconds: ten years. Who wants more means `immutable`.
const TTL_MAX_S: u64 = 10 * 366 * 86_400;

pub(crate) fn parse_ram(origin: &SettingOrigin, text: &OsStr) -> Result<u64, UserError> {
    parse_size(&origin.to_string(), &text.to_string_lossy())
}

pub(super) fn parse_policy(origin: &SettingOrigin, text: &OsStr) -> Result<TierPolicy, UserError> {
    (text.to_string_lossy().parse()).map_err(|why: String| UserError::bad_input(format_args!("{origin}: {why}")))
}

pub(super) fn parse_freshness(origin: &SettingOrigin, text: &OsStr) -> Result<Freshness, UserError> {
    let text = text.to_string_lossy();
    let refuse = |why: &str| UserError::bad_input(format_args!("{origin}: {why}; write ttl=SECONDS, immutable or on_open"));
    let value = match text.split_once('=') {
        None if text == "immutable" => Freshness::Immutable,
        None if text == "on_open" => Freshness::OnOpen,
        Some(("ttl", seconds)) => match seconds.parse() {
            Ok(0) => return Err(refuse("ttl=0 would ask at each open, which is on_open")),
            Ok(seconds) if seconds <= TTL_MAX_S => Freshness::of_seconds(seconds),
            Ok(_) => return Err(refuse("that is longer than ten years, which is immutable")),
            Err(_) => return Err(refuse(&format!("invalid number of seconds '{seconds}'"))),
        },
        _ => return Err(refuse(&format!("invalid freshness '{text}'"))),
    };
    Ok(value)
}

pub(super) fn parse_exclude(origin: &SettingOrigin, text: &OsStr) -> Result<OsString, UserError> {
    match forebay_contract::exclude::check(text.as_bytes()) {
        Ok(()) => Ok(text.to_owned()),
        Err(why) => Err(UserError::bad_input(format_args!(
            "{origin}: pattern '{}' {why}",
            text.to_string_lossy()
        ))),
    }
}

/// Returns a freshness as users write it.
pub fn freshness_text(freshness: Freshness) -> String {
    match (freshness, freshness.seconds()) {
        (_, Some(seconds)) => format!("ttl={seconds}"),
        (Freshness::OnOpen, _) => "on_open".into(),
        _ => "immutable".into(),
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

pub(super) fn parse_tier_order(origin: &SettingOrigin, text: &OsStr) -> Result<TierOrder, UserError> {
    let text = text.to_string_lossy();
    let known = [TierOrder::Given, TierOrder::Speed];
    let value = known.into_iter().find(|order| order.text() == text);
    value.ok_or_else(|| UserError::bad_input(format_args!("{origin}: invalid order of tiers '{text}'; write given or speed")))
}

/// Reading of files before a program asks for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefetchMode {
    /// Ahead of the first reader of a large file, as far as there is evidence that it will read on.
    #[default]
    Auto,
    /// Nothing: copies follow their readers. Also spelled `off`.
    Follow,
    /// Each large file as a whole once it is opened.
    File,
    /// Files beside those that were opened, while the source is idle; other copies follow their readers.
    Idle,
}

impl PrefetchMode {
    /// Returns the choice as users write it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Follow => "follow",
            Self::File => "file",
            Self::Idle => "idle",
        }
    }
}

pub(super) fn parse_prefetch(origin: &SettingOrigin, text: &OsStr) -> Result<PrefetchMode, UserError> {
    let text = text.to_string_lossy();
    let known = [PrefetchMode::Auto, PrefetchMode::Follow, PrefetchMode::File, PrefetchMode::Idle];
    let named = known.into_iter().find(|prefetch| prefetch.text() == text);
    let value = named.or_else(|| (text == "off").then_some(PrefetchMode::Follow));
    value.ok_or_else(|| {
        UserError::bad_input(format_args!(
            "{origin}: invalid kind of prefetch '{text}'; write auto, follow, file or idle"
        ))
    })
}
