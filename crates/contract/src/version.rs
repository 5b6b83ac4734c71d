//! The one version of all shared memory and all messages between processes of a node, and its history.

/// Version of all shared memory and all messages. Processes of different versions refuse each other.
pub const CONTRACT_VERSION: u32 = VERSIONS[VERSIONS.len() - 1].number;

/// A version, and the digests that pin it.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// Number of the version.
    pub number: u32,
    /// Digest of the layouts of shared memory, which `layout.rs` compares when it is built.
    pub layouts: u64,
    /// Digest of the messages in JSON, which a test of the agent compares; 0 before the messages had a digest.
    pub messages: u64,
}

/// All versions. A layout or message that changes needs a new line; earlier lines stay as they are.
pub const VERSIONS: &[Version] = &[
    version(1, 0x01A2_E03E_CAD8_1D7C, 0),
    version(2, 0x02A1_6BAD_EFA1_DD60, 0),
    version(3, 0x6EDF_347C_FEEC_E4B8, 0),
    version(4, 0xD437_36BE_1B81_3BDB, 0),
    version(5, 0x24F8_579B_BE1E_8C5F, 0),
    version(6, 0xBDE4_FD6C_48F2_7422, 0),
    version(7, 0x1EFA_8EC3_2CD5_9403, 0),
    version(8, 0x4BBF_5A20_D8FC_6EC0, 0),
    version(9, 0xB2EA_5AEA_0744_826F, 0x7E07_12BF_745B_E763),
    version(10, 0xB2EA_5AEA_0744_826F, 0xFD68_BBB2_FA7C_A832),
    version(11, 0x6430_A589_7CB0_D213, 0x1DCE_2161_1195_62CE),
    version(12, 0x6430_A589_7CB0_D213, 0x8F5E_2CE2_FA90_06E2),
];

const fn version(number: u32, layouts: u64, messages: u64) -> Version {
    Version { number, layouts, messages }
}

const _: () = {
    let mut at = 0;
    while at < VERSIONS.len() {
        assert!(VERSIONS[at].number as usize == at + 1, "versions are counted from 1, one a line");
        at += 1;
    }
};
