package fleet

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/refvol/refvol/pkg/status"
)

// ResultKind is the kind of a Result. Its apiVersion is status.APIVersion.
const ResultKind = "Convergence"

// Object names an object.
type Object struct {
	// Kind is ConfigMap or Secret.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String returns the object in the form that people use on a command line.
func (o Object) String() string {
	return fmt.Sprintf("%s/%s in namespace %s", strings.ToLower(o.Kind), o.Name, o.Namespace)
}

// Result says which volumes show an object's current version. Its texts may come from another plugin, so print them with status.Printable.
type Result struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Object     Object `json:"object"`
	// ObservedAt is the caller's time at the end of the survey.
	ObservedAt time.Time `json:"observedAt"`
	// Current is the object's version, or nil if the object doesn't exist.
	Current *status.Version `json:"current,omitempty"`
	// Revision is the object's annotation refvol.dev/revision, and WantedRevision the one that was asked for; "" for none.
	Revision       string `json:"revision,omitempty"`
	WantedRevision string `json:"wantedRevision,omitempty"`
	// Converged means that at least one volume names the object (withdrawn ones count), that there is no laggard, and that the object has
	// not Changed.
	Converged bool `json:"converged"`
	// None means that no volume names the object, and that nothing else prevents success.
	None bool `json:"none,omitempty"`
	// Changed means that the object changed while the plugins were asked.
	Changed bool `json:"changed,omitempty"`
	// Nodes is the number of nodes that had to answer, without those of WithoutPlugin. Volumes is the number of volumes that name the
	// object. Showing is how many of them show the current version.
	Nodes   int `json:"nodes"`
	Volumes int `json:"volumes"`
	Showing int `json:"showing"`
	// NotForPod is how many volumes name the object as a canary that, at the current version, does not exist for their pods. They are no
	// laggards.
	NotForPod int `json:"notForPod,omitempty"`
	// Opened is how many of those have had all files of the object opened. It is nil unless that was asked for.
	Opened *int `json:"opened,omitempty"`
	// Withdrawn are the volumes that name the object, whose pods may no longer read it, and in which no file of it remains. They are no
	// laggards, and Volumes does not count them.
	Withdrawn []WithdrawnVolume `json:"withdrawn"`
	// WithoutPlugin are pods that wait on a node without a plugin, so that nothing is mounted for them. They are no laggards: when a plugin
	// comes, they get the version that is current then.
	WithoutPlugin []UnpublishedPod `json:"withoutPlugin"`
	// Laggards are the volumes and nodes that prevent success.
	Laggards []OutdatedVolume `json:"laggards"`
	// NotPublished are pods that have not started, or that no kubelet has accepted, and whose volume is not reported or waits for
	// something. They are no laggards, because they get the version that is current when the volume is published.
	NotPublished []UnpublishedPod `json:"notPublished"`
	// NotCovered says, for people, what the result does not cover.
	NotCovered []string `json:"notCovered"`
}

// OutdatedVolume is a volume that does not show the current version, or a node about which that isn't known.
type OutdatedVolume struct {
	Node string `json:"node"`
	// Pod and Volume are not set for a node.
	Pod    *status.Pod `json:"pod,omitempty"`
	Volume string      `json:"volume,omitempty"`
	// Shown is the version that the files show, or nil if they show none or that isn't known.
	Shown *status.Version `json:"shown,omitempty"`
	// Reason is for tools: one of the constants below, or the Reason of a Problem. Message is for people.
	Reason  Reason `json:"reason"`
	Message string `json:"message"`
}

// WithdrawnVolume is a volume from which the object was withdrawn.
type WithdrawnVolume struct {
	Node   string     `json:"node"`
	Pod    status.Pod `json:"pod"`
	Volume string     `json:"volume"`
}

// UnpublishedPod is a pod that has not started.
type UnpublishedPod struct {
	Node string `json:"node,omitempty"`
	status.Pod
}

// The reasons for which a volume is a laggard.
const (
	// Outdated: the files show another version.
	Outdated Reason = "Outdated"
	// Pinned: the files show another version and never change.
	Pinned Reason = "Pinned"
	// NotShown: the volume names the object, but its files don't show it, or may show a mix of versions.
	NotShown Reason = "NotShown"
	// Publishing: the volume is not mounted yet, and may have been rendered before a change.
	Publishing Reason = "Publishing"
	// ObjectsUnknown: the plugin doesn't know yet which objects the volume names.
	ObjectsUnknown Reason = "ObjectsUnknown"
	// Spreading: the volume takes the change at its pod's moment.
	Spreading Reason = "Spreading"
	// Held: the pod does not belong to the share that may take the version.
	Held Reason = "Held"
	// Split: the objects of the volume, which has sameRevision, carry different revisions.
	Split Reason = "Split"
	// NotOpened: the files show the version, but not all of them have been opened since.
	NotOpened Reason = "NotOpened"
	// OpenUnknown: the files show the version, but it is not known whether they were opened.
	OpenUnknown Reason = "OpenUnknown"
	// NotReported: the pod runs, but the plugin does not report its volume.
	NotReported Reason = "NotReported"
)

// Evaluate compares a survey with the object's versions before the survey began and after it ended. A version is nil if the object doesn't
// exist. Success is only possible if both versions are the same, because a volume never goes back, and a volume that was published during
// the survey got this version.
//
// With opened, success also requires that all of the object's files in each volume were opened since they show that version.
func Evaluate(object Object, opened bool, before, after *status.Version, survey *Survey) *Result {
	v := &Result{
		APIVersion: status.APIVersion, Kind: ResultKind, Object: object, Current: after,
		Withdrawn: []WithdrawnVolume{}, WithoutPlugin: []UnpublishedPod{}, Laggards: []OutdatedVolume{}, NotPublished: []UnpublishedPod{},
		NotCovered: notCovered(opened),
	}
	if opened {
		v.Opened = new(int)
	}
	if after == nil {
		return v
	}
	v.Nodes, v.Changed = len(survey.Nodes), before == nil || *before != *after
	for i := range survey.Nodes {
		v.node(&survey.Nodes[i])
	}
	for _, pod := range survey.NotAccepted {
		v.NotPublished = append(v.NotPublished, notStarted(pod))
	}
	slices.SortStableFunc(v.Laggards, func(a, b OutdatedVolume) int { return cmp.Compare(a.rank(), b.rank()) })
	all := len(v.Laggards) == 0 && !v.Changed
	named := v.Volumes+len(v.Withdrawn) > 0
	v.Converged, v.None = all && named, all && !named
	return v
}

// AcceptNone makes it a success if no volume names the object.
func (v *Result) AcceptNone() { v.Converged, v.None = v.Converged || v.None, false }

// RequireRevision makes it a failure if an existing object has another revision than the wanted one. "" stands for none.
func (v *Result) RequireRevision(wanted, has string) {
	if v.WantedRevision, v.Revision = wanted, has; v.HasOtherRevision() {
		v.Converged, v.None = false, false
	}
}

// HasOtherRevision reports whether the object has another revision than the wanted one.
func (v *Result) HasOtherRevision() bool {
	return v.WantedRevision != "" && v.Current != nil && v.Revision != v.WantedRevision
}

func notCovered(opened bool) []string {
	applications, env := "whether the applications have read the new files", "env, envFrom"
	if opened {
		applications = "whether the files were opened, and whether the applications use what they read"
		env = "env and envFrom of pods without the label refvol.dev/restart"
	}
	return []string{
		"native references: " + env + ", and volumes of type configMap, secret and projected that no refvol volume shows",
		"containers that mount a volume by subPath, unless its writeStrategy is InPlace: a file keeps the content of their start, a directory becomes empty with the first update",
		applications,
	}
}

func (v *Result) node(node *Node) {
	if node.isWaiting {
		v.Nodes--
		for _, pod := range node.Pods {
			v.WithoutPlugin = append(v.WithoutPlugin, notStarted(pod))
		}
		return
	}
	if p := node.Problem; p != nil {
		message := p.Message
		if len(node.Pods) > 0 {
			message = fmt.Sprintf("%s; running there with volumes of the driver: %s", message, names(node.Pods))
		}
		v.Laggards = append(v.Laggards, OutdatedVolume{Node: node.Name, Reason: p.Reason, Message: message})
	}
	if node.Report == nil {
		return
	}
	for i := range node.Report.Volumes {
		v.volume(node.Name, &node.Report.Volumes[i])
	}
	for _, pod := range node.Missing() {
		v.unreported(pod)
	}
}

// unreported adds the volumes of a pod from Missing.
func (v *Result) unreported(pod Pod) {
	if !pod.Started {
		v.NotPublished = append(v.NotPublished, notStarted(pod))
		return
	}
	of := notStarted(pod).Pod
	for _, volume := range pod.Volumes {
		v.Laggards = append(v.Laggards, OutdatedVolume{
			Node: pod.Node, Pod: &of, Volume: volume, Reason: NotReported,
			Message: "the pod runs, and the plugin doesn't report its volume, which may show the object",
		})
	}
}

// volume adds a reported volume if it names the object, or may name it.
func (v *Result) volume(node string, volume *status.Volume) {
	lag := func(shown *status.Version, reason Reason, message string) {
		v.Laggards = append(v.Laggards, OutdatedVolume{
			Node: node, Pod: &volume.Pod, Volume: volume.Name, Shown: shown, Reason: reason, Message: message,
		})
	}
	if len(volume.Objects) == 0 && volume.Condition != conditionCurrent && volume.Condition != conditionPinned {
		lag(nil, ObjectsUnknown, because("the plugin doesn't know yet which objects the volume names", volume.Reason))
		return
	}
	named := slices.IndexFunc(volume.Objects, func(o status.VolumeObject) bool {
		return Object(o.Key()) == v.Object
	})
	if named < 0 {
		return
	}
	if isStuck(volume) {
		v.NotPublished = append(v.NotPublished, UnpublishedPod{node, volume.Pod})
		return
	}
	object := &volume.Objects[named]
	if object.Withdrawn && object.Shown == nil {
		v.Withdrawn = append(v.Withdrawn, WithdrawnVolume{node, volume.Pod, volume.Name})
		return
	}
	v.Volumes++
	switch shown := object.Shown; {
	case volume.Shows(object, *v.Current):
		v.Showing++
		v.opened(volume, object, lag)
	case shown == nil && object.Absent != nil && (object.Absent.Is(*v.Current) || object.Immutable && object.Absent.UID == v.Current.UID):
		v.NotForPod++
	case shown == nil && volume.Condition == conditionPublishing:
		lag(nil, Publishing, because("the volume is being published", volume.Reason))
	case volume.Condition == conditionPinned:
		lag(shown, Pinned, "updatePolicy is Pinned: it shows what it showed first; recreate the pod")
	case volume.Condition == conditionSpreading:
		lag(shown, Spreading, volume.Reason)
	case volume.Condition == conditionHeld:
		lag(shown, Held, volume.Reason)
	case volume.Condition == conditionSplit:
		lag(shown, Split, volume.Reason)
	case shown == nil:
		lag(nil, NotShown, because("the files are not known to show it", cmp.Or(volume.Reason, object.Reason, object.State)))
	case shown.UID != v.Current.UID:
		lag(shown, Outdated, because("it shows an earlier object of this name", cmp.Or(volume.Reason, object.Reason)))
	default:
		lag(shown, Outdated, cmp.Or(volume.Reason, object.Reason, "it shows another version"))
	}
}

// opened evaluates the receipts of an object that a volume shows at the current version.
func (v *Result) opened(volume *status.Volume, object *status.VolumeObject, lag func(*status.Version, Reason, string)) {
	switch {
	case v.Opened == nil:
	case object.OpenedAt != nil:
		*v.Opened++
	case volume.OldEnvironment(object) != "":
		lag(object.Shown, NotOpened, volume.OldEnvironment(object))
	case object.Opened == "no":
		lag(object.Shown, NotOpened, "nobody has opened "+unopened(object))
	case object.Opened == "unknown":
		lag(object.Shown, OpenUnknown, "the plugin has not seen all opens of "+unopened(object)+": replace the pod, or wait until it opens them again")
	default:
		lag(object.Shown, OpenUnknown, "the node's plugin can't see whether files are opened")
	}
}

// unopened lists the files that nobody has opened.
func unopened(object *status.VolumeObject) string {
	text := strings.Join(object.Unopened, ", ")
	if more := object.UnopenedCount - len(object.Unopened); more > 0 {
		text += fmt.Sprintf(" and %d more files", more)
	}
	if object.ShownSince != nil {
		text += ", shown since " + object.ShownSince.UTC().Format(time.RFC3339)
	}
	return text
}

// isStuck reports whether a volume is not mounted and waits for a repair by somebody. A mounted volume uses memory.
func isStuck(volume *status.Volume) bool {
	return volume.Bytes == 0 && volume.Condition != conditionPublishing && volume.Condition != conditionUnknown &&
		!slices.ContainsFunc(volume.Objects, func(o status.VolumeObject) bool { return o.Shown != nil })
}

// The conditions that a result distinguishes. docs/metrics.md lists all of them.
const (
	conditionCurrent    = "Current"
	conditionPinned     = "Pinned"
	conditionPublishing = "Publishing"
	conditionUnknown    = "Unknown"
	conditionSpreading  = "Spreading"
	conditionHeld       = "Held"
	conditionSplit      = "Split"
)

// because adds a reason to a message, if there is one.
func because(message, reason string) string {
	if reason == "" {
		return message
	}
	return message + ": " + reason
}

// rank sorts nodes first, because the least is known about them.
func (l *OutdatedVolume) rank() int {
	if l.Pod == nil {
		return 0
	}
	return 1
}

func notStarted(pod Pod) UnpublishedPod {
	return UnpublishedPod{Node: pod.Node, Pod: status.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}}
}

// names lists the first few pods.
func names(pods []Pod) string {
	const few = 5
	var list []string
	for _, pod := range pods[:min(few, len(pods))] {
		list = append(list, pod.Namespace+"/"+pod.Name)
	}
	if more := len(pods) - few; more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, ", ")
}

// IsSame reports whether two results are equal, apart from messages and times, which may differ each time.
func (v *Result) IsSame(other *Result) bool {
	return reflect.DeepEqual(v.withoutMessages(), other.withoutMessages())
}

func (v *Result) withoutMessages() *Result {
	bare := *v
	bare.ObservedAt = time.Time{}
	bare.Laggards = slices.Clone(v.Laggards)
	for i := range bare.Laggards {
		bare.Laggards[i].Message = ""
	}
	return &bare
}
