// Package history records what happens to volumes, and judges it.
//
// It owns one form of events and one list of properties. Each property is a function that proves a sentence of the documents. The simulation
// writes such events. The package must not know how an event came about: whether its clock is real, or what read a file.
package history

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Version is a version of an object as its content tells it. Of one UID a larger N is newer. UIDs of one name sort by their age.
type Version struct {
	UID string `json:"uid,omitempty"`
	N   int    `json:"n,omitempty"`
}

// IsOlder reports whether v is older than another version.
func (v Version) IsOlder(than Version) bool {
	return v.UID < than.UID || v.UID == than.UID && v.N < than.N
}

// Kind says what an event is.
type Kind string

// The kinds of events. The comment of each kind says which fields it has besides At.
const (
	// Wrote: Object got Version. Share is the percentage of the pods that may take it, or for which it exists if a volume names it as a canary.
	// Revision says which objects belong together. Removed: Object was deleted.
	Wrote   Kind = "wrote"
	Removed Kind = "removed"
	// Granted: Account may read Object from now on. Revoked: it may not. Suspended: until End nobody is known to have any right.
	Granted   Kind = "granted"
	Revoked   Kind = "revoked"
	Suspended Kind = "suspended"
	// Published: the call that began at Begin made Volume visible, or found it so. Failed: it failed with Code. Unpublished: Volume is gone.
	Published   Kind = "published"
	Failed      Kind = "failed"
	Unpublished Kind = "unpublished"
	// Saw: a reader that began at Begin saw Seen in Volume.
	Saw Kind = "saw"
	// Opened: a file of Object in Volume was opened; Text names the key and Version its content.
	Opened Kind = "opened"
	// Told: the plugin reported Condition, and Receipts, of Volume.
	Told Kind = "told"
	// Known: Answers are all that the plugin knows of the API server's objects.
	Known Kind = "known"
	// Killed: the plugin ended; Text says where. Started: it runs.
	Killed  Kind = "killed"
	Started Kind = "started"
	// Broke: an attempt to write Volume failed, for a reason of the node. Mended: that reason is gone. Lost: Volume was unmounted by somebody
	// else.
	Broke  Kind = "broke"
	Mended Kind = "mended"
	Lost   Kind = "lost"
	// Lagging: the API server answers as it was at Begin. CaughtUp: it answers with the newest state again.
	Lagging  Kind = "lagging"
	CaughtUp Kind = "caught up"
	// Faulty: the API server fails now and then. Healed: it has not failed for a long time.
	Faulty Kind = "faulty"
	Healed Kind = "healed"
	// Requested: the plugin sent the request that Text names, while nothing happened.
	Requested Kind = "requested"
	// Left: Text says what of the volumes remains after the last unpublish.
	Left Kind = "left"
)

// Event is one thing that happened. The comment of its kind says which fields are set.
type Event struct {
	Kind Kind `json:"kind"`
	// At is the time since the begin of the history. Begin and End are such times too.
	At    time.Duration `json:"at"`
	Begin time.Duration `json:"begin,omitempty"`
	End   time.Duration `json:"end,omitempty"`

	Volume  string `json:"volume,omitempty"`
	Object  string `json:"object,omitempty"`
	Account string `json:"account,omitempty"`
	Text    string `json:"text,omitempty"`

	Version Version `json:"version,omitzero"`
	Share   int     `json:"share,omitempty"`

	Revision string `json:"revision,omitempty"`
	// IsImmutable and IsLarge: the version is immutable, or exceeds the limit of a volume.
	IsImmutable bool  `json:"isImmutable,omitempty"`
	IsLarge     bool  `json:"isLarge,omitempty"`
	Seen        *Seen `json:"seen,omitempty"`
	// Code is a gRPC code. Condition is a condition of a volume.
	Code      string `json:"code,omitempty"`
	Condition string `json:"condition,omitempty"`
	// Receipts has the objects whose files have all been opened.
	Receipts []string `json:"receipts,omitempty"`
	// Answers has what is known, by account and object. An answer without a UID says that the object does not exist.
	Answers map[Question]Answer `json:"-"`

	// index is the event's place in its history: events of a simulation may have the same time.
	index int
}

// String returns the event in one line.
func (e *Event) String() string {
	text := fmt.Sprintf("%10.3f %s %s", e.At.Seconds(), e.Kind, e.Volume)
	for _, part := range []string{e.Account, e.Object, e.Code, e.Condition, e.Text} {
		if part != "" {
			text += " " + part
		}
	}
	if e.Version != (Version{}) {
		text += fmt.Sprint(" ", e.Version)
	}
	if e.Kind == Wrote {
		text += fmt.Sprintf(" %d%% %s", e.Share, e.Revision)
	}
	if e.Seen != nil {
		text += fmt.Sprintf(" %s of %d: %v %v %s", e.Seen.Generation, len(e.Seen.Left), e.Seen.Shown, e.Seen.Wrong, e.Seen.Gone)
	}
	if len(e.Receipts) > 0 {
		text += fmt.Sprint(" opened ", e.Receipts)
	}
	return text
}

// Question is what the plugin knows an answer to. Account is "" if objects are read with the plugin's own rights.
type Question struct{ Account, Object string }

// Answer is what the plugin knows of an object. IsKnown is false while nothing is known. Since is when the plugin began to follow the object.
type Answer struct {
	Version Version
	IsKnown bool
	Since   time.Duration
}

// Seen is what a reader saw in a volume through one handle on its present generation.
type Seen struct {
	// Reader names the reader. What one reader sees never goes back.
	Reader string `json:"reader,omitempty"`
	// Generation is the name of the generation, and Left the names of all generations that were there then.
	Generation string   `json:"generation,omitempty"`
	Left       []string `json:"left,omitempty"`
	// Shown are the objects of which there are files.
	Shown map[string]Version `json:"shown,omitempty"`
	// Wrong says what is wrong with the files, whatever happened before: a torn file, a link without a file, an empty directory.
	Wrong []string `json:"wrong,omitempty"`
	// Gone says what could not be read any more because its generation was removed.
	Gone string `json:"gone,omitempty"`
	// IsSettled means that there has been no fault and no change for so long that the volume must be current.
	IsSettled bool `json:"isSettled,omitempty"`
	// IsPrompt means that the last change was some seconds ago, and that there has been no fault for long.
	IsPrompt bool `json:"isPrompt,omitempty"`
}

// Volume says what a volume should show, and to whom. It is constant.
type Volume struct {
	ID, Account string
	// Required, Optional, Canaries: the objects. Share says for which pods a canary exists. NeedsConsent are those to which the account needs a
	// right.
	Required, Optional, Canaries, NeedsConsent []string
	// InPlace, Pinned, Removes: the attributes writeStrategy: InPlace, updatePolicy: Pinned, onDelete: Remove.
	InPlace, Pinned, Removes bool
	// IsJoined means that there are files of several objects. IsSet: the attribute sameRevision.
	IsJoined, IsSet bool
	// Place is the pod's place, 1 to 100. LastMoment returns the pod's last moment at or before a time; it is nil without spread.
	Place      int
	LastMoment func(at time.Duration) time.Duration
}

// Objects returns all objects of the volume.
func (v *Volume) Objects() []string { return slices.Concat(v.Required, v.Optional, v.Canaries) }

// History is what happened to some volumes, in the order in which it was added. It is safe for concurrent use.
type History struct {
	began time.Time

	mu      sync.Mutex
	volumes map[string]*Volume
	events  []Event
	// met counts what happened, by name.
	met map[string]int
}

// New returns a history that begins now.
func New() *History {
	return &History{began: time.Now(), volumes: map[string]*Volume{}, met: map[string]int{}}
}

// Now returns the time since the begin.
func (h *History) Now() time.Duration { return time.Since(h.began) }

// Declare adds a volume. Events of other volumes prove nothing.
func (h *History) Declare(v Volume) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.volumes[v.ID] = &v
}

// Add adds an event that happens now.
func (h *History) Add(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.At, e.index = h.Now(), len(h.events)
	h.events = append(h.events, e)
}

// AddAt adds an event that another process noted: it has its time already. The events of one volume must come in their order.
func (h *History) AddAt(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.index = len(h.events)
	h.events = append(h.events, e)
}

// Met counts something that should happen in some run.
func (h *History) Met(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.met[what]++
}

// Events returns the events so far. The caller must not change them.
func (h *History) Events() []Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clip(h.events)
}

// AllMet returns how often each thing happened.
func (h *History) AllMet() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.met)
}
