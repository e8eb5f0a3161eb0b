package csi

import (
	"hash/maphash"
	"maps"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// failureTime without a failed call on a volume makes its next failure news again. The
	// kubelet tries again after two minutes at most.
	failureTime = 10 * time.Minute
	// maxFailures is how many different failures of one volume are news.
	maxFailures = 8
)

// failures knows which failed calls were logged, because the kubelet repeats a call until it
// succeeds. It is safe for concurrent use.
type failures struct {
	seed maphash.Seed

	mu sync.Mutex
	// of holds the failures of a method on a volume.
	of map[call]*failed
}

type call struct{ method, volumeID string }

// failed is digests of failures since the last success, and when the last one was.
type failed struct {
	digests map[uint64]bool
	at      time.Time
}

func newFailures() *failures {
	return &failures{seed: maphash.MakeSeed(), of: map[call]*failed{}}
}

// isNews notes that a call has failed, and says whether it has not failed so since its last
// success. Errors that differ in numbers only are the same failure: the names of generations and
// sizes change from one try to the next. So are all that say Unavailable: which of the requests to
// the API server failed last, and how, changes too.
func (f *failures) isNews(method, volumeID string, err error) bool {
	kind := codes.Unavailable.String()
	if status.Code(err) != codes.Unavailable {
		kind = strings.Map(func(r rune) rune {
			if r >= '0' && r <= '9' {
				return -1
			}
			return r
		}, err.Error())
	}
	digest := maphash.String(f.seed, kind)
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.of, func(_ call, last *failed) bool { return now.Sub(last.at) > failureTime })
	c := call{method, volumeID}
	last := f.of[c]
	if last == nil {
		last = &failed{digests: map[uint64]bool{}}
		f.of[c] = last
	}
	last.at = now
	if last.digests[digest] || len(last.digests) == maxFailures {
		return false
	}
	last.digests[digest] = true
	return true
}

// forget has the next failure of a call be news. After an unpublish so is that of a publish.
func (f *failures) forget(method, volumeID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.of, call{method, volumeID})
	if method == "NodeUnpublishVolume" {
		delete(f.of, call{"NodePublishVolume", volumeID})
	}
}
