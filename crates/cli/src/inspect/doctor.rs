//! `forebay doctor`: what a run would cover, what it would choose and why, and the most that it could gain.

use std::{
    ffi::OsString,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use forebay_agent::{
    host::memory::{Gauge, MemoryReading},
    tiering::{
        TieringConnection,
        protocol::{Status, TierStatus},
    },
};
use forebay_settings::{
    config::{Config, WrittenSettings, freshness_text, is_off},
    environment::Environment,
    mounts::reach,
    text, tiers,
    user_error::{EXIT_BAD_INPUT, UserError},
};
use forebay_store::Lack;
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};

use crate::{
    args::DoctorArgs,
    inspect::{
        logs,
        measure::{PlaceReadTimes, PlacesToCompare, measure},
    },
    run::{
        exclude, library,
        plan::Plan,
        program::{Cover, Program},
        record::settings,
    },
};

/// Version of the JSON.
const SCHEMA: u32 = 1;
/// A source that takes so many times as long as the tier, or less, leaves nothing to gain: that much is noise.
const NOTHING_BELOW: f64 = 1.1;
/// A queue for descriptors with fewer places than this fills up when many workers open files at once.
const BACKLOG_ENOUGH: u64 = 1024;

/// Findings of the check.
#[derive(Debug)]
struct Findings {
    plan: Plan,
    program: Option<Result<Program, UserError>>,
    others: Vec<PathBuf>,
    agent: Option<Status>,
    kernel: KernelLimits,
    /// Features that the file system of each tier lacks.
    lacks: Vec<Option<Lack>>,
    gain: Result<PlaceReadTimes, String>,
    is_off: bool,
    memory: MemoryReading,
}

/// Facts of the kernel that matter to a run.
#[derive(Debug)]
struct KernelLimits {
    release: String,
    backlog: u64,
    descriptors: Option<u64>,
}

impl KernelLimits {
    fn look() -> Self {
        let backlog = fs::read_to_string("/proc/sys/net/core/somaxconn")
            .ok()
            .and_then(|text| text.trim().parse().ok());
        Self {
            release: rustix::system::uname().release().to_string_lossy().into_owned(),
            backlog: backlog.unwrap_or(0),
            descriptors: getrlimit(Resource::Nofile).maximum,
        }
    }
}

/// Looks and measures; gives the text, and whether the program could be run.
///
/// # Errors
/// Bad input.
pub fn doctor(args: &DoctorArgs, environment: &Environment) -> Result<(String, u8), UserError> {
    if args.logs {
        return Ok((logs::text(environment)?, 0));
    }
    let config = Config::resolve(&WrittenSettings::from(&args.choices), environment)?;
    let exe = std::env::current_exe().map_err(|error| UserError::bad_input(format_args!("/proc/self/exe: {error}; mount /proc")))?;
    let mut plan = Plan::make(config, &args.program, environment, &exe)?;
    plan.order_tiers();
    let program = args.program.first().map(|name| {
        Program::find(name, environment).map(|mut program| {
            program.try_library(&plan.library);
            program
        })
    });
    let gain = if let Some(why) = plan.idle.as_ref().or(plan.no_tier.as_ref()) {
        Err(why.clone())
    } else {
        let places = places_to_read(&plan, &args.program, environment);
        // One in memory is made when its agent starts.
        let tier = plan
            .tiers
            .first()
            .and_then(|tier| tier.setting.dir.ancestors().find(|dir| dir.is_dir()));
        let tier = tier.map(Path::to_owned).unwrap_or_default();
        measure(&PlacesToCompare { places, tier }, &exe)
    };
    let agent = TieringConnection::open(&plan.request().agent.dir)
        .and_then(|mut connection| connection.status())
        .ok();
    let findings = Findings {
        program,
        others: library::others(environment),
        agent,
        kernel: KernelLimits::look(),
        lacks: plan.tiers.iter().map(|tier| tiers::lack(&tier.setting.dir)).collect(),
        gain,
        is_off: is_off(environment)?,
        memory: Gauge::find().look(),
        plan,
    };
    let status = match &findings.program {
        Some(Err(refusal)) => refusal.status,
        _ if findings.lacks.iter().any(Option::is_some) => EXIT_BAD_INPUT,
        Some(Ok(Program {
            cover: Cover::Breaks(_), ..
        })) => EXIT_BAD_INPUT,
        _ => 0,
    };
    let out = if args.json {
        format!("{:#}\n", findings.json())
    } else {
        findings.text()
    };
    Ok((out, status))
}

/// Returns the most likely directories of the program's data: those in its arguments, the current one, then all
/// sources.
fn places_to_read(plan: &Plan, words: &[OsString], environment: &Environment) -> Vec<PathBuf> {
    let dirs: Vec<PathBuf> = plan.sources.found.iter().map(|source| source.dir.clone()).collect();
    let named = words
        .iter()
        .skip(1)
        .flat_map(|word| forebay_settings::sources::paths_in(word))
        .map(|path| environment.make_absolute(&path));
    let mut places: Vec<PathBuf> = named
        .chain(environment.directory.clone())
        .filter(|path| reach(path, &dirs).is_some())
        .collect();
    places.extend(dirs);
    places
}

impl Findings {
    fn text(&self) -> String {
        let mut out = String::new();
        let mut row = |what: &str, words: &str| {
            let _ = writeln!(out, "{what:<11} {words}");
        };
        if self.is_off {
            row("off", "FOREBAY=off is set: every program runs untouched");
        }
        let files = &self.plan.config.files;
        row("config", &files.first().map_or("no file".into(), |file| file.display().to_string()));
        for site in files.iter().skip(1) {
            row("", &site.display().to_string());
        }
        self.source_rows(&mut row);
        for (at, view) in self.plan.config.views.value.iter().enumerate() {
            row(
                if at == 0 { "views" } else { "" },
                &format!("{view}, fetched before the program starts"),
            );
        }
        self.tier_rows(&mut row);
        let order = &self.plan.config.tier_order;
        row("tier order", &format!("{} ({})", order.value.text(), order.origin));
        let policy = &self.plan.config.policy;
        row("policy", &format!("{} ({})", policy.value, policy.origin));
        let prefetch = &self.plan.config.prefetch;
        row("prefetch", &format!("{} ({})", prefetch.value.text(), prefetch.origin));
        let freshness = &self.plan.config.freshness;
        row("freshness", &format!("{} ({})", freshness_text(freshness.value), freshness.origin));
        let excludes = &self.plan.config.excludes;
        if !excludes.value.is_empty() {
            let patterns = exclude::texts(&excludes.value).join(" ");
            row("exclude", &format!("{patterns} ({}): the source's alone", excludes.origin));
        }
        match &self.program {
            None => row("program", "none named; forebay doctor -- PROGRAM looks at one"),
            Some(Err(refusal)) => row("program", &refusal.to_string()),
            Some(Ok(program)) => row("program", &format!("{}: {}", program.image.display(), program.cover)),
        }
        row("library", &self.plan.library.display().to_string());
        for other in &self.others {
            row("", &format!("after {}, which is preloaded already", other.display()));
        }
        self.kernel_rows(&mut row);
        self.gain_rows(&mut row);
        out
    }

    fn source_rows(&self, row: &mut dyn FnMut(&str, &str)) {
        let sources = &self.plan.sources;
        for (at, source) in sources.found.iter().enumerate() {
            let shared = if source.is_network { "" } else { "; not a network file system" };
            row(
                if at == 0 { "sources" } else { "" },
                &format!("{} ({}{shared})", source.dir.display(), source.fs_type),
            );
        }
        if sources.found.is_empty() {
            row("sources", "none");
        }
        for spelling in sources
            .spellings
            .iter()
            .filter(|spelling| sources.found.iter().all(|source| source.dir != spelling.path))
        {
            row("", &format!("also as {}", spelling.path.display()));
        }
        for note in &sources.notes {
            row("", note);
        }
        for (at, note) in self.plan.unused.iter().enumerate() {
            row(if at == 0 { "variables" } else { "" }, note);
        }
    }

    fn tier_rows(&self, row: &mut dyn FnMut(&str, &str)) {
        for (at, tier) in self.plan.tiers.iter().enumerate() {
            let setting = &tier.setting;
            let words = format!(
                "{} ({}), up to {}; {}",
                setting.label(),
                tier.fs_type,
                text::bytes(setting.bytes),
                tier.why
            );
            row(if at == 0 { "tiers" } else { "" }, &words);
            tier.note.iter().for_each(|note| row("", note));
            if let Some(Some(lack)) = self.lacks.get(at) {
                row(
                    "",
                    &format!("can't hold copies: its file system {lack}; name a directory on another one"),
                );
            }
        }
        if self.plan.tiers.is_empty() {
            row("tiers", self.plan.no_tier.as_deref().unwrap_or("none"));
        }
        match &self.agent {
            None => row("agent", "none is running; a run starts one"),
            Some(status) => {
                let copies: u64 = status.tiers.iter().map(TierStatus::copies).sum();
                let bytes: u64 = status.tiers.iter().map(|tier| tier.used_bytes).sum();
                let copies = text::counted(copies, "copy", "copies");
                row(
                    "agent",
                    &format!(
                        "running for {}, {copies}, {}",
                        text::counted(status.runs, "run", "runs"),
                        text::bytes(bytes)
                    ),
                );
            }
        }
    }

    fn kernel_rows(&self, row: &mut dyn FnMut(&str, &str)) {
        let KernelLimits {
            release,
            backlog,
            descriptors,
        } = &self.kernel;
        let descriptors = descriptors.map_or("any number".into(), text::count);
        row(
            "kernel",
            &format!(
                "{release}; at most {} files wait to be copied, {descriptors} descriptors",
                text::count(*backlog)
            ),
        );
        if *backlog < BACKLOG_ENOUGH {
            row(
                "",
                &format!("net.core.somaxconn is {backlog}: when many workers open files at once, some will not be copied"),
            );
        }
        let MemoryReading { memory, what } = self.memory;
        let (limit, free) = (text::bytes(memory.limit_bytes), text::bytes(memory.free_bytes));
        row("memory", &format!("{limit}, {what}; {free} free"));
    }

    fn gain_rows(&self, row: &mut dyn FnMut(&str, &str)) {
        let measured = match &self.gain {
            Ok(measured) => measured,
            Err(why) => return row("gain", &format!("nothing can be said: {why}")),
        };
        let files = text::counted(measured.files, "file", "files");
        let rate = |time: std::time::Duration| {
            let each = time.as_secs_f64() * 1e3 / text::ratio(measured.files, 1).max(1.0);
            format!(
                "{each:.2} ms a file, {}/s",
                text::bytes((text::ratio(measured.bytes, 1) / time.as_secs_f64().max(1e-6)) as u64)
            )
        };
        row(
            "measured",
            &format!("{files}, {}, read cold, one after the other", text::bytes(measured.bytes)),
        );
        row("", &format!("source {}", rate(measured.source)));
        row("", &format!("tier   {}", rate(measured.tier)));
        if measured.ratio() < NOTHING_BELOW {
            return row("gain", "nothing: the source answers as fast as the tier");
        }
        let ratio = measured.ratio();
        row(
            "gain",
            &format!("the source takes {ratio:.1} times as long as the tier, which serves a file from its second reading on"),
        );
        let share = |waiting: f64| {
            format!(
                "{:.1} times as fast if it now waits for data {:.0} % of its time",
                measured.speed_up(waiting),
                waiting * 100.0
            )
        };
        row("", &format!("at most, a job gets {}, {}", share(0.5), share(0.1)));
        row(
            "",
            &format!(
                "what fits into memory ({}) may be in the page cache already; the server's cache helps the source here",
                text::bytes(self.memory.memory.limit_bytes)
            ),
        );
    }

    fn json(&self) -> Value {
        let plan = &self.plan;
        let path = |path: &Path| path.to_string_lossy().into_owned();
        json!({
            "schema": SCHEMA,
            "forebay": env!("CARGO_PKG_VERSION"),
            "off": self.is_off,
            "settings": settings(&plan.config),
            "idle": plan.idle,
            "no_tier": plan.no_tier,
            "sources": plan.sources.found.iter().map(|source| json!({
                "dir": path(&source.dir), "file_system": source.fs_type, "network": source.is_network,
            })).collect::<Vec<_>>(),
            "spellings": plan.sources.spellings.iter().map(|spelling| path(&spelling.path)).collect::<Vec<_>>(),
            "notes": plan.sources.notes.iter().chain(&plan.unused).collect::<Vec<_>>(),
            "tiers": plan.tiers.iter().zip(&self.lacks).map(|(tier, lack)| json!({
                "dir": path(&tier.setting.dir), "ram": tier.setting.ram, "quota_bytes": tier.setting.bytes, "file_system": tier.fs_type, "why": tier.why,
                "note": tier.note, "read_us": tier.read_time.map(|time| time.us), "lack": lack.map(|lack| lack.to_string()),
            })).collect::<Vec<_>>(),
            "agent": self.agent,
            "program": self.program.as_ref().map(|program| match program {
                Ok(program) => json!({
                    "path": path(&program.path), "image": path(&program.image), "covered": program.cover == Cover::Covered,
                    "why_not": program.cover.why_not(),
                }),
                Err(refusal) => json!({ "error": refusal.to_string() }),
            }),
            "library": path(&plan.library),
            "preloaded": self.others.iter().map(|other| path(other)).collect::<Vec<_>>(),
            "kernel": { "release": self.kernel.release, "somaxconn": self.kernel.backlog, "descriptors": self.kernel.descriptors },
            "memory_bytes": self.memory.memory.limit_bytes,
            "memory_free_bytes": self.memory.memory.free_bytes,
            "gain": match &self.gain {
                Ok(measured) => json!({
                    "files": measured.files, "bytes": measured.bytes, "source_seconds": measured.source.as_secs_f64(),
                    "tier_seconds": measured.tier.as_secs_f64(), "ratio": measured.ratio(),
                    "nothing": measured.ratio() < NOTHING_BELOW,
                    "speed_up_if_waiting_half": measured.speed_up(0.5), "speed_up_if_waiting_tenth": measured.speed_up(0.1),
                }),
                Err(why) => json!({ "unknown": why }),
            },
        })
    }
}
