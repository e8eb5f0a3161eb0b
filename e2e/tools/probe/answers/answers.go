// Package answers has what the probe takes and answers in JSON. It must not know how that comes about.
package answers

import "time"

// Entry is one file, directory or link.
type Entry struct {
	// Path is relative to the root of the walk; the root itself is ".".
	Path string `json:"path"`
	// Type is "file", "dir", "link" or "other".
	Type string `json:"type"`
	// Mode is the permission bits with setuid, setgid and sticky, in octal.
	Mode string `json:"mode"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	// Link is what a link points to.
	Link string `json:"link,omitempty"`
	// Content is what a file holds, in base64.
	Content []byte `json:"content,omitempty"`
	// Denied tells that a file's content, or what is in a directory, may not be read, or that
	// the directory was removed.
	Denied bool `json:"denied,omitempty"`
}

// Mount is a line of the mount table of one mount namespace.
type Mount struct {
	// Process is the command line's first word of one process in that namespace.
	Process string `json:"process"`
	PID     int    `json:"pid"`
	Line    string `json:"line"`
}

// Told is a text that a file got, or a read that went wrong.
type Told struct {
	File string `json:"file"`
	Text string `json:"text"`
	// Error is set if the read failed.
	Error string `json:"error,omitempty"`
	// Reads counts the reads of the file up to this one.
	Reads int `json:"reads"`
	// At is the time after the read, by the clock of package clock.
	At time.Duration `json:"at"`
}

// Logins counts logins. Error is the last one that failed.
type Logins struct {
	Tried  int    `json:"tried"`
	Failed int    `json:"failed"`
	Error  string `json:"error,omitempty"`
}

// Assault is what to attack.
type Assault struct {
	// Places are files that nobody may change.
	Places []Place `json:"places"`
	// Scratch is a directory that the attacker may write to.
	Scratch string `json:"scratch"`
	// Outside is a path of the node that nothing in the container may lead to.
	Outside string `json:"outside"`
	// Tries is how many attacks on files there are at least.
	Tries int `json:"tries"`
}

// Place is a file that may not be changed, in a directory.
type Place struct {
	Dir  string `json:"dir"`
	Name string `json:"name"`
	// Alone says that only the file may not be changed: it is a mount of its own.
	Alone bool `json:"alone"`
}

// Report counts for each attack what the kernel answered: an errno's name, or "ok".
type Report map[string]map[string]int

// Siege is what an assault came to.
type Siege struct {
	// Rehearsal is of the same attacks on what may be changed: those that don't succeed there prove nothing.
	Rehearsal Report `json:"rehearsal"`
	Report    Report `json:"report"`
	// Succeeded is where something was changed, or reached, that may not be: the first few.
	Succeeded []string `json:"succeeded,omitempty"`
}
