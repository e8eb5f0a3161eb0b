package main

// platform is what a binary runs on, as Go names it.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "_" + p.arch }

// program is a command of ../../cmd.
type program struct {
	name      string
	platforms []platform
	// krew says that users install it as a plugin of kubectl.
	krew bool
}

// programs are all that a release has, each with an image.
func programs() []program {
	linux := []platform{{"linux", "amd64"}, {"linux", "arm64"}}
	return []program{
		{name: "kubectl-refvol", platforms: append(linux, platform{"darwin", "amd64"}, platform{"darwin", "arm64"}, platform{"windows", "amd64"}), krew: true},
		{name: "refvol-plugin", platforms: linux},
	}
}
