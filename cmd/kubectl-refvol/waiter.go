package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	// shortestPause is the shortest pause between two rounds.
	shortestPause = time.Second
	// longestPause is the longest pause after a failed round, for example while an API server is replaced.
	longestPause = 30 * time.Second
	// watchPause is the pause between two rounds of status --watch.
	watchPause = 2 * time.Second
)

// waiter waits until the versions of objects have arrived everywhere. It is used for one call of wait.
type waiter struct {
	// find returns the objects. It is called until it succeeds. With findAgain it is called before each round, because other objects may
	// get the labels.
	find      func(context.Context) ([]fleet.Object, error)
	findAgain bool
	version   func(context.Context, fleet.Object) (objectVersion, error)
	survey    func(context.Context, ...fleet.Object) (*fleet.Survey, error)
	// write prints the results, one for each object.
	write func([]*fleet.Result) error
	// warn reports why a round failed that is retried. progress reports what the command waits for.
	warn     func(error)
	progress func(string)
	// watch means that it continues, and prints the results each time they change.
	watch bool
	// allowNone makes it a success if no volume names the object.
	allowNone bool
	// opened means that success also requires that the files have been opened.
	opened bool
	// revision is the one that the objects must carry, or "".
	revision volume.Revision

	// objects are the results of find. before has their versions before the next round, if they are known.
	objects []fleet.Object
	before  []objectVersion
	// last are the last results, and printed those that were printed last.
	last, printed []*fleet.Result
	// lastText is the last text of warn and progress.
	lastText string
}

// wait returns nil if the last results are a success. timeout limits the time as in kubectl wait: 0 means one round, which takes as long as
// its requests do, and less means a week.
func (w *waiter) wait(ctx context.Context, timeout time.Duration) error {
	deadline, cancel, isOnce := ctx, func() {}, timeout == 0
	if !isOnce {
		deadline, cancel = withTimeout(ctx, timeout)
	}
	defer cancel()
	changed := false // in the last round
	retry := wait.Backoff{Duration: shortestPause, Factor: 2, Steps: 6, Cap: longestPause}
	again := retry
	var failure error // the error of the last complete round, if it failed
	for deadline.Err() == nil {
		began := time.Now()
		if err := w.round(deadline); err != nil {
			if deadline.Err() != nil {
				failure = cmp.Or(failure, err)
				break
			}
			failure = err
			if isOnce || isRefusal(failure) || w.last == nil && isFinal(failure) {
				return err
			}
			w.printOnce("Warning: "+err.Error(), func(string) { w.warn(err) })
			pause(deadline, again.Step())
			continue
		}
		again, failure = retry, nil
		switch {
		case w.watch || isSettled(w.last):
			if err := w.printResults(); err != nil || isOnce || !w.watch {
				return errors.Join(err, outcome(w.last))
			}
		case isOnce:
			return errors.Join(w.printResults(), outcome(w.last))
		default:
			w.printOnce(blockers(w.last), w.progress)
		}
		// A version that came during the round may have arrived everywhere already, so there is no pause. But if one comes in each round,
		// the plugins must not be asked without pauses.
		now := hasChanged(w.last)
		if !now || changed {
			pause(deadline, max(shortestPause, time.Since(began)))
		}
		changed = now
	}
	if w.last == nil {
		if cause := context.Cause(deadline); failure != nil && !errors.Is(failure, cause) {
			return fmt.Errorf("%w: %w", cause, failure)
		}
		return context.Cause(deadline)
	}
	return errors.Join(w.printResults(), outcome(w.last))
}

// withTimeout returns a context that ends with --timeout. A negative timeout is a week, as in kubectl wait.
func withTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	const week = 7 * 24 * time.Hour
	if timeout < 0 {
		timeout = week
	}
	return context.WithTimeoutCause(ctx, timeout, fmt.Errorf("--timeout %s has passed", timeout))
}

// printOnce prints a text, unless it is the same as the last one.
func (w *waiter) printOnce(text string, show func(string)) {
	if text != w.lastText {
		w.lastText = text
		show(text)
	}
}

// round asks all plugins once, and sets the last results. ctx ends the requests. If it ends the first round, the results have what is known
// then, unless that is a success, which it would not prove.
func (w *waiter) round(ctx context.Context) (err error) {
	if w.objects == nil || w.findAgain {
		found, err := w.find(ctx)
		if err != nil {
			return err
		}
		if !slices.Equal(found, w.objects) {
			w.objects, w.before = found, nil
		}
	}
	if w.before == nil {
		if w.before, err = w.versions(ctx); err != nil {
			return err
		}
	}
	survey := &fleet.Survey{}
	if hasAny(w.before) {
		if survey, err = w.survey(ctx, w.objects...); err != nil {
			return err
		}
	}
	after, err := w.versions(ctx)
	isCut := ctx.Err() != nil
	switch {
	case isCut && w.last != nil:
		// The last complete round says more than one that was cut short.
		return context.Cause(ctx)
	case isCut:
		after = w.before
	case err != nil:
		return err
	}
	results := make([]*fleet.Result, len(w.objects))
	for i, object := range w.objects {
		results[i] = fleet.Evaluate(object, w.opened, w.before[i].Version, after[i].Version, survey)
		results[i].ObservedAt = time.Now().UTC().Truncate(time.Second)
		if w.allowNone {
			results[i].AcceptNone()
		}
		if w.revision != "" {
			results[i].RequireRevision(string(w.revision), string(after[i].revision))
		}
	}
	if isCut && isSettled(results) {
		return context.Cause(ctx)
	}
	w.last, w.before = results, after
	return nil
}

// objectVersion is an object's version, or nil if it does not exist, with its annotation refvol.dev/revision, or "" if that is not valid.
type objectVersion struct {
	*status.Version
	revision volume.Revision
}

func (w *waiter) versions(ctx context.Context) ([]objectVersion, error) {
	all := make([]objectVersion, len(w.objects))
	for i, object := range w.objects {
		var err error
		if all[i], err = w.version(ctx, object); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func hasAny(versions []objectVersion) bool {
	for _, v := range versions {
		if v.Version != nil {
			return true
		}
	}
	return false
}

// printResults prints the last results, unless they are the same as those printed before.
func (w *waiter) printResults() error {
	same := len(w.printed) == len(w.last)
	for i := range w.printed {
		same = same && w.printed[i].IsSame(w.last[i])
	}
	if same {
		return nil
	}
	w.printed = w.last
	return w.write(w.last)
}

// isSettled reports whether there is nothing to wait for: all objects have converged, or one does not exist or is in no volume.
func isSettled(results []*fleet.Result) bool {
	all := true
	for _, v := range results {
		if v.None || v.Current == nil {
			return true
		}
		all = all && v.Converged
	}
	return all
}

func hasChanged(results []*fleet.Result) bool {
	for _, v := range results {
		if v.Changed {
			return true
		}
	}
	return false
}

// isRefusal reports whether an error is a refusal, which no retry can change.
func isRefusal(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
}

// isFinal reports whether an error of the first round will not go away, for example after a wrong flag. In later rounds the same error may
// come from a plugin or an API server that is being replaced.
func isFinal(err error) bool {
	_, usage := errors.AsType[*usageError](err)
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, request := errors.AsType[*url.Error](err)
	return usage || certificate || errors.Is(err, errNoPlugin) || request && strings.Contains(err.Error(), "getting credentials")
}

// usageError says that the command line is wrong.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// outcome returns nil for success. If there are several errors, known negative answers come first, because they decide the exit status.
func outcome(results []*fleet.Result) error {
	var known, others []error
	for _, v := range results {
		switch {
		case v.Converged:
		case v.Current == nil:
			known = append(known, &statusError{fmt.Errorf("%s does not exist", v.Object), no})
		case v.None:
			others = append(others, &statusError{fmt.Errorf("no refvol volume shows %s: is it the right name and namespace? --allow-none accepts this", v.Object), none})
		case v.HasOtherRevision():
			known = append(known, &statusError{fmt.Errorf("%s has the revision %q, not %q", v.Object, v.Revision, v.WantedRevision), no})
		case len(v.Laggards) == 0:
			known = append(known, &statusError{fmt.Errorf("%s changes too often to be found everywhere", v.Object), no})
		default:
			known = append(known, &statusError{fmt.Errorf("%s: not everywhere: volumes and nodes that lag: %d", v.Object, len(v.Laggards)), no})
		}
	}
	return errors.Join(append(known, others...)...)
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
