package publisher

import (
	"errors"
	"maps"
	"time"

	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/volume"
)

// Events tells a pod's author what ails the pod's volumes; *events.Recorder is one.
type Events interface {
	// Warn must return at once.
	Warn(pod volume.Pod, reason, message string)
}

// The reasons of events.
const (
	eventRefNotFound        = "RefNotFound"
	eventRefKeyNotFound     = "RefKeyNotFound"
	eventRefForbidden       = "RefForbidden"
	eventRefDeleted         = "RefDeleted"
	eventVolumeUpdateFailed = "VolumeUpdateFailed"
	eventInvalidNames       = "InvalidEnvironmentVariableNames"
)

// noEvents is for who wants none.
type noEvents struct{}

func (noEvents) Warn(volume.Pod, string, string) {}

// warn tells the pod's author what ails the volume. The caller does so once per
// change of its condition, not once per retry.
func (p *Publisher) warn(v *published, reason string, err error) {
	p.opts.Events.Warn(v.request.Pod, reason, err.Error())
}

// failure is what a pod's author was last told of a publish that failed, as newsOf has it, and
// when it did.
type failure struct {
	text string
	at   time.Time
}

// tellAgain is how long after a failed publish the same failure is news again. The kubelet
// tries again every two minutes at most; after that long nobody remembers.
const tellAgain = 10 * time.Minute

// isNews notes that a publish failed, and says whether the pod's author was told of just that
// already.
func (p *Publisher) isNews(volumeID, text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(p.failures, func(_ string, f failure) bool { return now.Sub(f.at) > tellAgain })
	last := p.failures[volumeID]
	p.failures[volumeID] = failure{text, now}
	return last.text != text
}

// newsOf returns what tells one failure of a publish from another. How full the node is changes
// from one try to the next, and is no news.
func newsOf(err error) string {
	if ReasonOf(err) == ReasonNodeFull {
		return kindOf(err)
	}
	return err.Error()
}

// forgetFailure has the next failed publish of a volume be news.
func (p *Publisher) forgetFailure(volumeID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.failures, volumeID)
}

// never is what a new volume has shown.
func never(volume.Ref) bool { return false }

// eventReason returns the reason of the event about a failure. had says whether the
// files have shown an object before.
func eventReason(err error, had func(volume.Ref) bool) string {
	var missing *payload.MissingError
	switch {
	case !errors.As(err, &missing):
		if ReasonOf(err) == ReasonForbidden {
			return eventRefForbidden
		}
		return eventVolumeUpdateFailed
	case missing.Missing[0].Key != "":
		return eventRefKeyNotFound
	case had(missing.Missing[0].Ref):
		return eventRefDeleted
	default:
		return eventRefNotFound
	}
}
