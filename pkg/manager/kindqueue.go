package manager

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// kindQueue holds the openings of one kind.
type kindQueue struct {
	pods map[types.UID]*podQueue
	// opening holds those that count against maxOpening, and hanging those that count against
	// maxHanging. The oldest comes first.
	opening, hanging []*opening
	// served is the turn at which the kind was last served.
	served int
	// numbered counts the openings that began to wait.
	numbered int
}

// podQueue holds the openings of one pod and kind.
type podQueue struct {
	// publish holds the waiting openings of a waiting publish, and others the rest.
	publish, others []*opening
	underWay        int
	// served is the turn at which the pod was last served.
	served int
}

// queue returns the queue of a pod; tidy removes it.
func (l *kindQueue) queue(pod types.UID) *podQueue {
	q := l.pods[pod]
	if q == nil {
		q = &podQueue{}
		l.pods[pod] = q
	}
	return q
}

func (l *kindQueue) remove(op *opening) {
	isOp := func(other *opening) bool { return other == op }
	l.opening, l.hanging = slices.DeleteFunc(l.opening, isOp), slices.DeleteFunc(l.hanging, isOp)
}

// settle moves hanging openings from opening to hanging, as far as there is room.
func (l *kindQueue) settle() {
	for _, op := range slices.Clone(l.opening) {
		if op.hangs && len(l.hanging) < maxHanging {
			l.remove(op)
			l.hanging = append(l.hanging, op)
		}
	}
}

// isUrgent tells whether a publish waits for op whose pod has nothing under way.
func (l *kindQueue) isUrgent(op *opening) bool {
	return op.candidate.publish && l.pods[op.pod].underWay == 0
}

// makeRoom takes the slot of the oldest opening if that has lasted for urgentTime. If too many
// hang, it cancels the one that has hung longest. It returns whether there is a slot.
func (l *kindQueue) makeRoom() bool {
	oldest := l.opening[0]
	if time.Since(oldest.began) < urgentTime {
		return false
	}
	if len(l.hanging) >= maxHanging {
		l.hanging[0].cancel(errMadeRoom)
		l.remove(l.hanging[0])
	}
	l.remove(oldest)
	l.hanging = append(l.hanging, oldest)
	return true
}

// tidy removes the queue of a pod that has nothing waiting and nothing under way.
func (l *kindQueue) tidy(pod types.UID) {
	if q := l.pods[pod]; q != nil && q.waiting()+q.underWay == 0 {
		delete(l.pods, pod)
	}
}

// first returns the pod's next opening, or nil.
func (q *podQueue) first() *opening {
	switch {
	case q == nil:
		return nil
	case len(q.publish) > 0:
		return q.publish[0]
	case len(q.others) > 0:
		return q.others[0]
	}
	return nil
}

// admitted returns the pod's next opening that may begin, or nil.
func (q *podQueue) admitted(s scopes) *opening {
	if op := firstAdmitted(q.publish, s); op != nil {
		return op
	}
	return firstAdmitted(q.others, s)
}

// oldest returns the pod's opening that may begin and has waited longest; there is one.
func (q *podQueue) oldest(s scopes) *opening {
	publish, other := firstAdmitted(q.publish, s), firstAdmitted(q.others, s)
	if publish == nil || other != nil && other.number < publish.number {
		return other
	}
	return publish
}

// firstAdmitted asks once for those in a row that are in the same scopes: a pod may have thousands.
func firstAdmitted(ops []*opening, s scopes) *opening {
	var last *candidate
	for _, op := range ops {
		p := op.candidate
		if last != nil && p.account == last.account && (p.refusal == nil) == (last.refusal == nil) {
			continue
		}
		if s.admit(p) {
			return op
		}
		last = p
	}
	return nil
}

func (q *podQueue) waiting() int {
	if q == nil {
		return 0
	}
	return len(q.publish) + len(q.others)
}

// before tells whether q's turn is before other's: a publish comes first, then the pod with
// the fewest openings under way, then the one that was served longest ago.
func (q *podQueue) before(other *podQueue) bool {
	if q.first().candidate.publish != other.first().candidate.publish {
		return q.first().candidate.publish
	}
	return cmp.Or(cmp.Compare(q.underWay, other.underWay), cmp.Compare(q.served, other.served)) < 0
}
