package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// assault is what to attack, as the command line has it in JSON.
type assault struct {
	// Places are what nobody may change.
	Places []place `json:"places"`
	// Scratch is a directory that the attacker may write to.
	Scratch string `json:"scratch"`
	// Outside is a path of the node that nothing in the container may lead to.
	Outside string `json:"outside"`
	// Seconds is how long the attacks go on, and Tries how many there are at least.
	Seconds int `json:"seconds"`
	Tries   int `json:"tries"`
	// UserNamespace has remount go on in a user and mount namespace of its own, where it is
	// root with all capabilities.
	UserNamespace bool `json:"userNamespace"`
}

// place is a file that may not be changed.
type place struct {
	// Dir is its directory, and Name its name there.
	Dir  string `json:"dir"`
	Name string `json:"name"`
	// Alone says that only the file may not be changed: it is a mount of its own.
	Alone bool `json:"alone"`
}

// tally counts what became of one kind of attack.
type tally struct {
	Tries int `json:"tries"`
	// Answers counts the tries by what the kernel answered: an errno's name, or "ok".
	Answers map[string]int `json:"answers"`
	// Succeeded is where something was changed, or reached, that may not be: the first few.
	Succeeded []string `json:"succeeded,omitempty"`
}

// maxSucceeded is how many successes a tally names.
const maxSucceeded = 5

// report has a tally for each attack by its name.
type report map[string]*tally

// add counts a try; where is "" if an answer without an error says nothing.
func (r report) add(attack, where string, err error) {
	t := r[attack]
	if t == nil {
		t = &tally{Answers: map[string]int{}}
		r[attack] = t
	}
	t.Tries++
	t.Answers[answerName(err)]++
	if err == nil && where != "" && len(t.Succeeded) < maxSucceeded {
		t.Succeeded = append(t.Succeeded, where)
	}
}

// tries counts those of all attacks.
func (r report) tries() int {
	total := 0
	for _, t := range r {
		total += t.Tries
	}
	return total
}

func answerName(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, errNoMount):
		return errNoMount.Error()
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// siege is what an assault came to.
type siege struct {
	// Rehearsal is of the same attacks on a directory that may be changed: those that
	// don't succeed there prove nothing.
	Rehearsal report `json:"rehearsal"`
	Report    report `json:"report"`
}

// attack does all that it knows to the places, again and again, until the time is up.
func attack(ctx context.Context, a *assault) (siege, error) {
	var s siege
	err := onThread(func() error {
		var err error
		if s.Rehearsal, err = a.rehearse(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, time.Duration(a.Seconds)*time.Second)
		defer cancel()
		s.Report = a.besiege(ctx)
		return nil
	})
	return s, err
}

// besiege attacks all places in turn until ctx ends and there were enough tries, each once
// at least.
func (a *assault) besiege(ctx context.Context) report {
	r := report{}
	held := hold{map[place][]int{}}
	defer held.release()
	for {
		for _, p := range a.Places {
			held.take(r, p)
			a.attackPlace(r, p)
		}
		a.escape(r)
		if ctx.Err() != nil && r.tries() >= a.Tries {
			return r
		}
	}
}

// onThread calls f on a thread with a working and a root directory of its own, which
// ends with it.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// rehearse attacks a file that may be changed, made anew for each try.
func (a *assault) rehearse() (report, error) {
	r := report{}
	p := place{Dir: filepath.Join(a.Scratch, "rehearsal"), Name: "key"}
	if err := p.makeAnew(); err != nil {
		return nil, err
	}
	for _, way := range a.ways(p.Dir) {
		for _, at := range append(fileAttacks(), dirAttacks()...) {
			if err := p.makeAnew(); err != nil {
				return nil, err
			}
			try(r, at, way, p)
		}
	}
	return r, os.RemoveAll(p.Dir)
}

// makeAnew makes the directory with nothing but the file.
func (p place) makeAnew() error {
	return errors.Join(os.RemoveAll(p.Dir), os.Mkdir(p.Dir, 0o755),
		os.WriteFile(filepath.Join(p.Dir, p.Name), []byte("text"), 0o600))
}

// attackPlace attacks one place, in each way to it.
func (a *assault) attackPlace(r report, p place) {
	attacks := fileAttacks()
	if !p.Alone {
		attacks = append(attacks, dirAttacks()...)
	}
	for _, way := range a.ways(p.Dir) {
		for _, at := range attacks {
			try(r, at, way, p)
		}
	}
	r.add("open-by-handle", p.Dir, byHandle(filepath.Join(p.Dir, p.Name)))
}

// try makes one attack in one way.
func try(r report, at blow, w way, p place) {
	dir, leave, err := w.enter(p.Dir)
	if err != nil {
		r.add(at.name, "", fmt.Errorf("no way %s: %w", w.name, err))
		return
	}
	defer leave()
	r.add(at.name, w.name+" to "+p.Dir+"/"+p.Name, at.strike(dir, dir+"/"+p.Name))
	_ = os.RemoveAll(dir + "/hostile") // so that the next one can succeed
}
