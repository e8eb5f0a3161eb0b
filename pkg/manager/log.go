package manager

import (
	"errors"
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
	// outageTime without a failure makes the next one the begin of an outage. It is
	// longer than two requests and a pause that end by timeout.
	outageTime = 2 * time.Minute
)

// failureLog writes failed requests to the log, without repeating itself for each
// attempt, nor for each object if all of them fail together.
type failureLog struct {
	logger  klog.Logger
	message string

	mu sync.Mutex
	// outageAt is when the API server was last seen out of reach.
	outageAt time.Time
}

// log writes err, which happened to ref; again tells that another one happened to
// it a short time ago.
func (l *failureLog) log(ref volume.Ref, err error, again bool) {
	logger := l.logger
	if l.known(err) || again {
		logger = logger.V(detailLevel)
	}
	logger.Info(l.message, "ref", ref, "err", err)
}

// known tells whether err is nothing to report: it belongs to the life of every
// watch, or it is one more sign of an outage that was reported.
func (l *failureLog) known(err error) bool {
	switch {
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err), apierrors.IsInvalid(err):
		return true
	case apierrors.ReasonForError(err) != metav1.StatusReasonUnknown, errors.Is(err, errStale):
		return false // the API server's answer about this object
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	known := now.Sub(l.outageAt) <= outageTime
	l.outageAt = now
	return known
}
