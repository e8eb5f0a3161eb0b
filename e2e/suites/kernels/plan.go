package main

import (
	"fmt"
	"slices"
)

// kernel is a kernel to test on.
type kernel struct {
	// name is what the user calls it.
	name string
	// suite is the release of Debian whose current kernel it is.
	suite string
	// machines are what is booted with it.
	machines []machine
}

// machine is one boot.
type machine struct {
	// selinux has SELinux enforce the policy of a release of Debian.
	selinux bool
	parts   []part
}

// part is a test binary that a machine runs.
type part struct {
	// name is how the table calls it.
	name string
	// module is the directory of the Go module, and pkg the package in it.
	module, pkg string
	// tests are those to run; none for all. Each must be there, and pass.
	tests []string
	// plugin says that the tests start the plugin, against an API server of this machine.
	plugin bool
}

// packages are tests of packages alone.
func packages() []part {
	return []part{
		{name: "e2e/suites/mount", module: "e2e", pkg: "./suites/mount"},
		{name: "pkg/mount", module: ".", pkg: "./pkg/mount"},
		{name: "pkg/writer", module: ".", pkg: "./pkg/writer"},
		{name: "pkg/receipts", module: ".", pkg: "./pkg/receipts"},
	}
}

// plugin are tests of the plugin, by what they are about. They are of one suite.
func plugin(name, suite string, tests ...string) part {
	return part{name: name, module: "e2e", pkg: "./suites/" + suite, tests: tests, plugin: true}
}

// lifeOfAVolume goes once through all that happens to a volume.
func lifeOfAVolume() part {
	return plugin("publish, update, restart, unpublish", "crash",
		"TestNeverVisibleAndIncomplete", "TestKernelWithoutNoswap")
}

// receipts are of who opens which files.
func receipts() part { return plugin("receipts", "receipts", "TestReceipts", "TestReceiptsInPlace") }

// all is what a kernel that refvol supports must pass.
func all() []part {
	return slices.Concat(packages(), []part{
		lifeOfAVolume(),
		receipts(),
		plugin("mounts of others", "crash", "TestSomethingMountedOnAFile", "TestMountRemovedAtAnyCall"),
		plugin("killed at its calls", "crash", "TestKilledAnywhere"),
		{name: "refvol-notify in cgroup v2", module: ".", pkg: "./cmd/refvol-notify", tests: []string{"TestSignalInCgroups"}},
		plugin("memory cgroup v2", "limits", "TestMemoryLimitWithoutAKill"),
		plugin("many volumes and a restart", "crash", "TestRestartWithManyVolumes"),
	})
}

// delegations are what the newest kernels let containers hold.
func delegations() part { return plugin("delegations", "limits", "TestDelegations") }

// enforcing is a machine with SELinux.
func enforcing() machine {
	return machine{selinux: true, parts: []part{
		plugin("SELinux: labels and confined readers", "seen", "TestSELinux"),
		plugin("SELinux: publish, update, restart, unpublish", "crash", lifeOfAVolume().tests...),
		plugin("SELinux: receipts", "receipts", receipts().tests...),
	}}
}

// kernels returns all that can be tested.
func kernels() []kernel {
	tooOld := []part{
		plugin("refuses to start", "crash", "TestKernelTooOld"),
		{name: "pkg/receipts: says why not", module: ".", pkg: "./pkg/receipts", tests: []string{"TestProbeKnowsTheKernel"}},
	}
	return []kernel{
		{name: "5.10", suite: "bullseye", machines: []machine{{parts: tooOld}}},
		{name: "6.1", suite: "bookworm", machines: []machine{{parts: all()}, enforcing()}},
		{name: "6.12", suite: "trixie", machines: []machine{{parts: all()}, enforcing()}},
		{name: "newest", suite: "sid", machines: []machine{{parts: append(all(), delegations())}, enforcing()}},
	}
}

// choose returns the kernels of these names, or all; or the short form.
func choose(names []string, short bool) ([]kernel, error) {
	all := kernels()
	if short {
		parts := append(packages(), lifeOfAVolume())
		all = []kernel{{name: "6.1", suite: "bookworm", machines: []machine{{parts: parts}}}}
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(k kernel) bool { return k.name == name }) {
			return nil, fmt.Errorf("no kernel is called %q", name)
		}
	}
	return slices.DeleteFunc(all, func(k kernel) bool { return len(names) > 0 && !slices.Contains(names, k.name) }), nil
}
