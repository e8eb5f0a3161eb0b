package publisher

import (
	"maps"
	"strings"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
)

// wantDone waits for the ends of calls, and expects success.
func (e *env) wantDone(results ...<-chan error) {
	e.Helper()
	for _, result := range results {
		e.must(<-result)
	}
}

// wantIs compares a value. format says what it is.
func wantIs[T comparable](e *env, format string, got, want T) {
	e.Helper()
	if got != want {
		e.Errorf(format+", want %v", got, want)
	}
}

// wantReason fails the test unless err has the reason and, if text is not "", that text.
func (e *env) wantReason(err error, reason failure.Reason, text string) {
	e.Helper()
	switch {
	case err == nil:
		e.Fatalf("no error, want reason %d: %s", reason, text)
	case failure.ReasonOf(err) != reason:
		e.Errorf("reason %d, want %d: %v", failure.ReasonOf(err), reason, err)
	case text != "" && err.Error() != text:
		e.Errorf("error text\n\t%s\nwant\n\t%s", err, text)
	}
	if leaked := leak.Check("the error", err.Error()); leaked != nil {
		e.Error(leaked)
	}
}

// wantWaiting fails the test if a call has returned. All other goroutines must be blocked.
func (e *env) wantWaiting(results ...<-chan error) {
	e.Helper()
	synctest.Wait()
	for _, result := range results {
		select {
		case err := <-result:
			e.Fatalf("the call returned: %v", err)
		default:
		}
	}
}

// wantFiles compares what the mount at the request's target shows. pairs are paths and contents.
func (e *env) wantFiles(r binding.Request, pairs ...string) {
	e.Helper()
	want := mapOf(pairs)
	if got := e.mounts.files(r.Target); !maps.Equal(got, want) {
		e.Errorf("volume %s shows %v, want %v", r.VolumeID, got, want)
	}
}

// wantFilesOf is wantFiles for many volumes.
func (e *env) wantFilesOf(all []binding.Request, pairs ...string) {
	e.Helper()
	for _, r := range all {
		e.wantFiles(r, pairs...)
	}
}

// wantProblem fails the test unless the volume's condition has a part, or is "" for "".
func (e *env) wantProblem(r binding.Request, part string) {
	e.Helper()
	problem := "" // also for an unknown volume
	if v := e.lookup(r.VolumeID); v != nil {
		e.p.table.mu.Lock()
		if s := v.state.status; s.Condition != ConditionUnknown && s.Condition != ConditionPublishing {
			problem = s.Reason
		}
		e.p.table.mu.Unlock()
	}
	if (part == "") != (problem == "") || !strings.Contains(problem, part) {
		e.Errorf("problem %q, want %q", problem, part)
	}
	if err := leak.Check("the condition", problem); err != nil {
		e.Error(err)
	}
}

// wantNothing fails the test if anything remains of any volume: in the maps, in the counts, in the manager, mounted or open.
func (e *env) wantNothing() {
	e.Helper()
	synctest.Wait() // volumes without a waiting publish are forgotten by themselves
	e.p.table.mu.Lock()
	defer e.p.table.mu.Unlock()
	if t := e.p.table; len(t.entries)+len(t.byRef)+len(t.workers) > 0 || t.room.Total() != 0 {
		e.Errorf("left: %d volumes, %d refs, %d workers, %d bytes counted", len(t.entries), len(t.byRef), len(t.workers), t.room.Total())
	}
	registered, mounted, made := e.objects.registrations(), e.mounts.Targets(), e.mounts.Leftovers()
	if len(registered)+len(mounted)+len(made) > 0 {
		e.Errorf("left registered: %v, mounted: %v, of file systems: %v", registered, mounted, made)
	}
}

func (e *env) wantUsed(want int64) {
	e.Helper()
	wantIs(e, "%v bytes counted", e.used(), want)
}

// wantBetween fails the test unless a number is in a range. format says what it counts.
func (e *env) wantBetween(format string, got, least, most int) {
	e.Helper()
	if got < least || got > most {
		e.Errorf(format+", want %d to %d", got, least, most)
	}
}

// wantTook compares the bubble's time since a moment.
func (e *env) wantTook(begin time.Time, want time.Duration) {
	e.Helper()
	wantIs(e, "it took %v", time.Since(begin), want)
}

// wantLines fails the test unless the log has so many lines with all parts.
func (e *env) wantLines(want int, parts ...string) {
	e.Helper()
	if lines := e.logs.With(parts...); len(lines) != want {
		e.Errorf("%d lines with %q, want %d: %q", len(lines), parts, want, lines)
	}
}
