//! What is done to the nodes of a world, as told to a witness.

/// Watches the nodes. Calls come in the order of events; they must not call back into the world.
pub trait Witness: Send + Sync + 'static {
    fn deed(&self, machine: &Struck, deed: Deed);
}

/// The machine that something was done to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Struck {
    pub vmid: u32,
    /// SMBIOS UUID, lower case.
    pub uuid: String,
    pub etcd: Option<Standing>,
}

/// Where a machine stands in its etcd cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    pub voters: usize,
    /// Voters that run, without this machine.
    pub others: usize,
    /// Whether this machine is a voter.
    pub votes: bool,
}

impl Standing {
    /// Whether there is a majority with this machine, and none without it. A lone voter leaves no other voter behind.
    pub fn is_decisive(&self) -> bool {
        let quorum = self.voters / 2 + 1;
        self.votes && self.voters > 1 && self.others < quorum && self.others + 1 >= quorum
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// It was given a machine config, to take or to try.
    Config,
    /// It was told to reboot, to reset itself or to shut down.
    Away,
}

#[cfg(test)]
mod tests {
    use super::Standing;

    fn decisive(voters: usize, others: usize) -> bool {
        let votes = true;
        Standing { voters, others, votes }.is_decisive()
    }

    #[test]
    fn the_one_without_whom_there_is_no_majority_is_decisive() {
        assert!(decisive(3, 1) && decisive(2, 1) && decisive(5, 2));
        assert!(!decisive(3, 2) && !decisive(5, 3), "the others are enough");
        assert!(!decisive(3, 0), "there was no majority before");
        assert!(!decisive(1, 0), "a lone voter");
    }
}
