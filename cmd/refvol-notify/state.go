package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// state is what a process leaves for the next one. Its directory outlives containers, and disappears with the pod or when the node
// restarts. It holds no value of a variable.
type state struct {
	// Running are the files with which the containers run, or of which the application was last notified. nil means that the containers are
	// to restart or have never run: they start with the present files.
	Running files `json:"running"`
	// Because names the changed files that caused a restart. The log of the last process is gone with its container.
	Because string `json:"because,omitempty"`

	// Old marks the variables that a restart should have changed; nil if the restart had another cause. Tries counts the restarts that did
	// not change them.
	Old   *mark `json:"old,omitempty"`
	Tries int   `json:"tries,omitempty"`
	// Newer means that the file want is newer than the marked variables: it has changed since they were equal. Otherwise nobody knows which
	// is newer. A held volume keeps older files while the kubelet gives newer variables.
	Newer bool `json:"newer,omitempty"`
	// Retried is the identity of the file want for which the containers have restarted once more, because a restart did not change variables of
	// which nobody knows whether they are older or newer.
	Retried string `json:"retried,omitempty"`
	// Equal means that the containers started with the variables of the file want in Running.
	Equal bool `json:"equal,omitempty"`
	// DoubtEndsAt is zero unless the variables differ from the file. Until then the file may still change.
	DoubtEndsAt time.Time `json:"doubtEndsAt,omitzero"`

	// InRow counts actions without a long pause between them. LastAt is the time of the last one.
	InRow  int       `json:"inRow,omitempty"`
	LastAt time.Time `json:"lastAt,omitzero"`
	counts
}

// counts are the counters for metrics, over all restarts.
type counts struct {
	Changes, Done, Failed, OldEnvironments int64
	LastChangeAt                           time.Time
}

const stateFile = "state.json"

func loadState(dir string) (state, error) {
	var s state
	if dir == "" {
		return s, nil
	}
	text, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return state{}, fmt.Errorf("read the state: %w", err)
	}
	return s, nil
}

// save replaces the file in one step.
func (s *state) save(dir string) error {
	if dir == "" {
		return nil
	}
	text, err := json.Marshal(s)
	name := filepath.Join(dir, stateFile)
	if err == nil {
		err = os.WriteFile(name+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		return fmt.Errorf("save the state: %w", err)
	}
	return nil
}

const (
	firstBackoff   = 10 * time.Second
	longestBackoff = 5 * time.Minute
	longPause      = 10 * time.Minute
)

// nextRestartAt returns when the containers may restart again. Kubernetes itself has no back-off for restarts in place.
func (s *state) nextRestartAt(now time.Time) time.Time {
	if passed := now.Sub(s.LastAt); s.InRow == 0 || passed > longPause || passed < 0 { // below 0: the clock was set back
		s.InRow = 0
		return now
	}
	return s.LastAt.Add(backoff(firstBackoff, s.InRow-1, longestBackoff))
}

// backoff returns the first wait after it was doubled some times, up to a limit.
func backoff(first time.Duration, doubled int, longest time.Duration) time.Duration {
	for ; doubled > 0 && first < longest; doubled-- {
		first *= 2
	}
	return min(first, longest)
}
