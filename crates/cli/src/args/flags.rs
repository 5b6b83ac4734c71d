//! Options of a command line as written settings.

use forebay_settings::config::{WrittenSettings, peers::WrittenPeers};

use super::{Choices, PeerChoices, RunArgs, WarmArgs};

impl From<&Choices> for WrittenSettings {
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

impl From<&PeerChoices> for WrittenPeers {
    fn from(choices: &PeerChoices) -> Self {
        Self {
            nodes: choices.peers.clone(),
            interface: choices.peers_interface.clone(),
            ..Self::default()
        }
    }
}

impl From<&RunArgs> for WrittenSettings {
    fn from(args: &RunArgs) -> Self {
        Self {
            view: args.view.clone(),
            keep: args.keep.then_some(true),
            libraries: args.libraries.then_some(true),
            record: args.record.clone(),
            quiet: args.quiet.then_some(true),
            peers: WrittenPeers::from(&args.peers),
            ..Self::from(&args.choices)
        }
    }
}

impl From<&WarmArgs> for WrittenSettings {
    fn from(args: &WarmArgs) -> Self {
        Self {
            keep: args.keep.then_some(true),
            quiet: args.quiet.then_some(true),
            peers: WrittenPeers::from(&args.peers),
            ..Self::from(&args.choices)
        }
    }
}
