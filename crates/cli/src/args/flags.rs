//! Options of a command line as settings.

use forebay_settings::config::Flags;

use super::{Choices, RunArgs, WarmArgs};

impl From<&Choices> for Flags {
    fn from(choices: &Choices) -> Self {
        let choices = choices.clone();
        Self {
            source: choices.source,
            tier: choices.tier,
            tier_order: choices.tier_order,
            ram: choices.ram,
            policy: choices.policy,
            prefetch: choices.prefetch,
            exclude: choices.exclude,
            freshness: choices.freshness,
            ..Self::default()
        }
    }
}

impl From<&RunArgs> for Flags {
    fn from(args: &RunArgs) -> Self {
        Self {
            view: args.view.clone(),
            keep: args.keep,
            record: args.record.clone(),
            quiet: args.quiet,
            ..Self::from(&args.choices)
        }
    }
}

impl From<&WarmArgs> for Flags {
    fn from(args: &WarmArgs) -> Self {
        Self {
            keep: args.keep,
            quiet: args.quiet,
            ..Self::from(&args.choices)
        }
    }
}
