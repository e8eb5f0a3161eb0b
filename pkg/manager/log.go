package manager

import (
	"errors"
	"maps"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	// detailLevel is for what happens to each object, of which there are thousands.
	detailLevel = 4
	// outageTime without a failure makes the next failure the begin of an outage. It is
	// longer than two requests and a pause that end by timeout.
	outageTime = 2 * time.Minute
)

// failureLog logs failed requests. It logs a failure once, not for each attempt, and once for
// all objects that fail together.
type failureLog struct {
	logger  klog.Logger
	message string

	mu sync.Mutex
	// outages holds those that were seen within outageTime.
	outages map[cause]*outage
}

// cause is what failures have in common that concern more than one object.
type cause struct {
	// reason is what the API server said, Unknown if it can't be reached.
	reason metav1.StatusReason
	// account is whose token is refused.
	account volume.Account
}

// outage is a sequence of failures with one cause.
type outage struct {
	// logged is when its begin was last logged, and seen is when it last occurred.
	logged, seen time.Time
	// over says that a request has succeeded since it was logged.
	over bool
}

// log logs a failure of k. again says that another failure of k was a short time ago.
func (l *failureLog) log(k key, err error, again bool) {
	known := again
	if c, shared := causeOf(k, err); shared {
		known = !l.begins(c)
	}
	logger := l.logger
	if known || belongsToWatches(err) {
		logger = logger.V(detailLevel)
	}
	logger.Info(l.message, "ref", k.ref, "err", err)
}

// recovered logs once that requests succeed again after err, the last failure of k.
func (l *failureLog) recovered(k key, err error) {
	if c, shared := causeOf(k, err); shared && l.ends(c) {
		l.logger.Info("Requests succeed again", "ref", k.ref, "after", err)
	}
}

// belongsToWatches tells whether err is a usual end of a watch, which is not reported.
func belongsToWatches(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsInvalid(err)
}

// causeOf returns the cause of a failure. shared is false if the failure concerns the object
// alone.
func causeOf(k key, err error) (c cause, shared bool) {
	if belongsToWatches(err) || apierrors.IsForbidden(err) || errors.Is(err, errOlder) || errors.Is(err, errUnreadable) {
		return cause{}, false
	}
	c.reason = apierrors.ReasonForError(err)
	if apierrors.IsUnauthorized(err) {
		c.account = k.account
	}
	return c, true
}

// begins records a failure, and returns whether to log it as the begin of an outage. A failure
// soon after the end of an outage is logged only if it lasts.
func (l *failureLog) begins(c cause) bool {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.outages, func(_ cause, o *outage) bool { return now.Sub(o.seen) > outageTime })
	o := l.outages[c]
	if o == nil {
		o = &outage{over: true}
		l.outages[c] = o
	}
	o.seen = now
	if !o.over || now.Sub(o.logged) <= outageTime {
		return false
	}
	o.logged, o.over = now, false
	return true
}

// ends records a success after a failure, and returns whether it ends an outage that was
// logged.
func (l *failureLog) ends(c cause) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.outages[c]
	if o == nil || o.over {
		return false
	}
	o.over = true
	return true
}
