//! Decisions that are made before a program runs. `run` carries them out, `doctor` explains them.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use forebay_agent::tiering::{AgentConfig, RunRequest, TierSetting};
use forebay_policy::read_ahead::AheadMode;
use forebay_settings::{
    config::{Config, PrefetchMode, Setting, TierOrder, freshness_text},
    environment::Environment,
    mounts::Mounts,
    places,
    sources::Sources,
    text,
    tiers::{self, Chosen, used},
    user_error::UserError,
};

use crate::run::{exclude, library, ram, tier_order};

/// Everything that was decided.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Resolved settings.
    pub config: Config,
    /// Directories that are served.
    pub sources: Sources,
    /// Tiers for copies, top first.
    pub tiers: Vec<Chosen>,
    /// Patterns of files that are the source's alone, as the run page has them.
    pub excludes: Vec<u8>,
    /// Lines about variables that have no effect.
    pub unused: Vec<String>,
    /// Why nothing is to be done, if so.
    pub idle: Option<String>,
    /// Why there is no tier, if so. Large files are then read ahead into the page cache alone.
    pub no_tier: Option<String>,
    /// The preload library.
    pub library: PathBuf,
    /// The audit library, if shared libraries are served.
    audit: Option<PathBuf>,
    /// Sockets and shared memory.
    pub runtime_dir: Setting<PathBuf>,
    /// Records and the user's secret.
    pub state_dir: Setting<PathBuf>,
}

impl Plan {
    /// Decides. Nothing is made or written.
    ///
    /// # Errors
    /// Whatever was asked for and can't be.
    pub fn make(config: Config, words: &[OsString], environment: &Environment, exe: &Path) -> Result<Self, UserError> {
        let mounts = Mounts::read();
        let runtime_dir = places::runtime_dir(&config, environment, &mounts);
        let state_dir = places::state_dir(&config, environment, &runtime_dir.value);
        let sources = Sources::find(&config.sources, words, environment, &mounts)?;
        let named = tiers::named(&config.tiers, &sources.found, &mounts)?;
        let library = library::find(&config.own_paths.preload, exe)?;
        let audit = config
            .libraries
            .value
            .then(|| library::find_audit(&library, &config.libraries.origin))
            .transpose()?;
        let excludes = exclude::page_text(&config.excludes)?;
        let mut plan = Self {
            config,
            sources,
            tiers: named,
            excludes,
            unused: unused(environment),
            idle: None,
            no_tier: None,
            library,
            audit,
            runtime_dir,
            state_dir,
        };
        if plan.sources.found.is_empty() {
            let rest = plan
                .sources
                .notes
                .first()
                .map_or_else(|| "--source DIR serves any other directory".into(), Clone::clone);
            plan.idle = Some(format!("no network file system is mounted ({rest})"));
        } else if plan.tiers.is_empty() {
            match tiers::find(environment, &plan.sources, &mounts, &plan.state_dir.value) {
                Ok(tier) => plan.tiers.push(tier),
                Err(why) if plan.config.ram.value.is_some() => plan.sources.notes.push(format!("{why}: copies lie in memory only")),
                Err(why) => {
                    let why = format!("{why} (--tier DIR=SIZE names one)");
                    let reads_ahead = matches!(plan.config.prefetch.value, PrefetchMode::Auto | PrefetchMode::File);
                    *(if reads_ahead { &mut plan.no_tier } else { &mut plan.idle }) = Some(why);
                }
            }
        }
        if let (None, Some(value)) = (&plan.idle, plan.config.ram.value) {
            let wish = Setting::new(value, plan.config.ram.origin.clone());
            ram::put_above(&mut plan.tiers, &wish, &plan.runtime_dir.value, &mounts)?;
        }
        Ok(plan)
    }

    /// Puts the tiers into the order that was asked for, with what is measured for that.
    pub fn order_tiers(&mut self) {
        if self.config.tier_order.value == TierOrder::Speed {
            tier_order::arrange(&mut self.tiers, &self.runtime_dir.value, &self.state_dir.value);
        }
    }

    /// Makes our own directories, puts the tiers in order, and remembers which are used.
    ///
    /// # Errors
    /// When one of them can't be made or is not private.
    pub fn settle(&mut self) -> Result<(), UserError> {
        places::make(&self.runtime_dir, &self.state_dir)?;
        // Runs that begin at the same time measure once, and come to the same order.
        let _alone = (self.config.tier_order.value == TierOrder::Speed).then(|| used::lock(&self.state_dir.value));
        self.order_tiers();
        used::remember(&self.state_dir.value, &self.tiers, self.config.tiers.value.is_empty());
        Ok(())
    }

    /// Returns the audit library under a name that can stand in `LD_AUDIT`, if shared libraries are served.
    ///
    /// # Errors
    /// When it has no such name.
    pub fn audit_library(&self) -> Result<Option<PathBuf>, UserError> {
        let plain = |audit| library::plain_name(audit, &self.runtime_dir.value);
        self.audit.as_deref().map(plain).transpose()
    }

    /// Returns the request to the agent.
    pub fn request(&self) -> RunRequest {
        let tiers: Vec<TierSetting> = self.tiers.iter().map(|tier| tier.setting.clone()).collect();
        RunRequest {
            agent: AgentConfig::for_tiers(
                &self.runtime_dir.value,
                &self.state_dir.value,
                &tiers,
                self.config.policy.value,
                self.config.keep.value,
            ),
            sources: self.sources.spellings.clone(),
            freshness: self.config.freshness.value,
            prefetch: self.config.prefetch.value == PrefetchMode::Idle,
            ahead: match self.config.prefetch.value {
                PrefetchMode::Auto => AheadMode::Auto,
                PrefetchMode::File => AheadMode::File,
                PrefetchMode::Follow | PrefetchMode::Idle => AheadMode::Follow,
            },
            command_key: None,
            excludes: self.excludes.clone(),
            job: None,
        }
    }

    /// Returns what a user should know of the choices.
    pub fn notes(&self) -> impl Iterator<Item = &String> {
        let of_tiers = self.tiers.iter().filter_map(|tier| tier.note.as_ref());
        of_tiers.chain(&self.no_tier).chain(&self.sources.notes).chain(&self.unused)
    }

    /// Returns the choices as one line.
    pub fn line(&self) -> String {
        let sources = named_few(
            self.sources
                .found
                .iter()
                .map(|source| format!("{} ({})", source.dir.display(), source.fs_type)),
        );
        let freshness = freshness_text(self.config.freshness.value);
        if self.no_tier.is_some() {
            return format!("{sources}: large files are read ahead into the page cache, nothing is copied, {freshness}");
        }
        let tiers = named_few(self.tiers.iter().map(|tier| {
            let setting = &tier.setting;
            format!("{} (up to {}; {})", setting.label(), text::bytes(setting.bytes), tier.why)
        }));
        format!("{sources} from {tiers}, {freshness}")
    }
}

/// Returns a line for each misspelt variable.
fn unused(environment: &Environment) -> Vec<String> {
    let line = |(name, known)| format!("{name} has no effect, since Forebay has no such variable: did you mean {known}?");
    environment.misspelt().map(line).collect()
}

/// The first few, and how many more there are.
fn named_few(names: impl ExactSizeIterator<Item = String>) -> String {
    const SHOWN: usize = 3;
    let all = names.len();
    let line = names.take(SHOWN).collect::<Vec<_>>().join(", ");
    if all > SHOWN {
        format!("{line} and {} more", all - SHOWN)
    } else {
        line
    }
}
