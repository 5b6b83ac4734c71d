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
    version(13, 0x6430_A589_7CB0_D213, 0x5C14_A3D7_949D_035B),
    version(14, 0x6430_A589_7CB0_D213, 0x35B5_62FE_93C5_F7CC),
    version(15, 0xE615_D49B_4DA8_A0D2, 0x3F58_5F07_2A8A_3284),
    version(16, 0xBFF7_9AB2_BE66_E965, 0x3F58_5F07_2A8A_3284),
    version(17, 0x92AF_B4B4_3739_7719, 0x3F58_5F07_2A8A_3284),
    version(18, 0x92AF_B4B4_3739_7719, 0xB7F2_18D0_8F74_5850),
    version(19, 0x3510_5650_0C88_3157, 0x16E0_E595_F2D1_CDB1),
    // A handoff has one for a library where it had the open's flags.
    version(20, 0x3510_5650_0C88_3157, 0x16E0_E595_F2D1_CDB1),
    version(21, 0x3510_5650_0C88_3157, 0xC247_7EFC_08C8_4F20),
    version(22, 0xD937_B0D4_28EA_D42F, 0xC247_7EFC_08C8_4F20),
    version(23, 0xD937_B0D4_28EA_D42F, 0x4FBB_A1D9_335A_60E0),
    version(24, 0xD937_B0D4_28EA_D42F, 0x4349_E819_BF23_C924),
    version(25, 0xD937_B0D4_28EA_D42F, 0x85F6_9938_4FB6_F9FF),
    version(26, 0xD937_B0D4_28EA_D42F, 0x153D_D24B_DD91_113B),
    version(27, 0xD937_B0D4_28EA_D42F, 0x052D_8675_54E7_C31C),
    version(28, 0xD937_B0D4_28EA_D42F, 0xF048_7F14_1AB3_A789),
    version(29, 0xDA53_014B_6C85_7B9E, 0xF048_7F14_1AB3_A789),
    version(30, 0x6268_865B_ABC9_7D5C, 0xF048_7F14_1AB3_A789),
    // A clone of another number of ranks gets the states of all ranks, not their manifests alone.
    version(31, 0x6268_865B_ABC9_7D5C, 0xF048_7F14_1AB3_A789),
    // Hosts of a clone say that they have met.
    version(32, 0x6268_865B_ABC9_7D5C, 0x9E3B_FFE1_3529_3FEE),
    // The table by which nodes of a job have met has the size of their groups.
    version(33, 0x6268_865B_ABC9_7D5C, 0x7437_F4D3_21F7_B6A1),
    // Short entries come first in the streams of a state that goes to another host.
    version(34, 0x6268_865B_ABC9_7D5C, 0x7437_F4D3_21F7_B6A1),
    // A handoff has what its process had read.
    version(35, 0x14CA_F20E_B6B4_43CC, 0x7437_F4D3_21F7_B6A1),
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
