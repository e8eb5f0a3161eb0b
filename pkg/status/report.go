// Package status is what a plugin tells about its volumes: the format, and how it is served, fetched
// and printed.
//
// It owns the names and the version of the format, which tools read. It must not know what makes a
// volume current, and it holds no value of an object.
package status

import "time"

const (
	// APIVersion is the version of the format. A change that a reader of this version can't ignore
	// gets a new one.
	APIVersion = "status.refvol.dev/v1alpha1"
	// Kind is that of a Report.
	Kind = "PluginStatus"
)

// Report is what one plugin tells about its volumes at one moment.
type Report struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Driver, Node and Version are the plugin's own.
	Driver  string `json:"driver"`
	Node    string `json:"node"`
	Version string `json:"version"`
	// ObservedAt is the plugin's clock when it answered. The other times are of that clock.
	ObservedAt time.Time `json:"observedAt"`
	// MissingRights are those that the plugin's account needs and lacks, such as "list of secrets".
	MissingRights []string `json:"missingRights,omitempty"`
	// NotReady are the conditions that the plugin needs to be ready and that aren't met, each with why.
	NotReady []string `json:"notReady,omitempty"`
	// KnowsRollout says that the plugin heeds the annotation refvol.dev/rollout. Plugins of earlier releases don't.
	KnowsRollout bool `json:"knowsRollout"`
	// Refused are the volumes whose last publish failed in the last ten minutes.
	Refused []Refusal `json:"refused,omitempty"`
	// Volumes are those that are mounted or being published.
	Volumes []Volume `json:"volumes"`
}

// Refusal is a publish that failed.
type Refusal struct {
	VolumeID string `json:"volumeID"`
	// Name is that of the volume in the pod's spec.
	Name string `json:"name"`
	// Pod has no name if the request did not tell it.
	Pod Pod `json:"pod"`
	// Code is the gRPC code of the answer, such as InvalidArgument, and Message says why.
	Code    string `json:"code"`
	Message string `json:"message"`
	// At is when the answer was given.
	At time.Time `json:"at"`
}

// Volume is one volume.
type Volume struct {
	VolumeID string `json:"volumeID"`
	// Name is that of the volume in the pod's spec.
	Name string `json:"name"`
	Pod  Pod    `json:"pod"`
	// Condition is one of those that docs/metrics.md lists, and Reason says why, or is empty.
	Condition string `json:"condition"`
	Reason    string `json:"reason,omitempty"`
	// Unhealthy says that somebody should look at the condition.
	Unhealthy bool `json:"abnormal"`
	// Since is when the condition began, or when the plugin started if it is older.
	Since time.Time `json:"since"`
	// Bytes is the memory that the volume's tmpfs holds, with inodes.
	Bytes int64 `json:"bytes"`
	// WithoutToken says that the pod's service account has no usable token (--identity=pod).
	WithoutToken bool `json:"withoutToken,omitempty"`
	// Objects are those that the volume names. There are none as long as an earlier process's
	// volume is not taken over.
	Objects []Object `json:"objects"`
}

// Pod is whom a volume is for. Namespace and Name may be empty as long as an earlier process's
// volume is not taken over.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid"`
}

// Object is an object that a volume names.
type Object struct {
	// Kind is ConfigMap or Secret.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Shown is the version that the files show, nil if they show none.
	Shown *Version `json:"shown,omitempty"`
	// Withdrawn says that the pod may not have the object any more, and that no file of it is left. Plugins of earlier
	// releases don't tell.
	Withdrawn bool `json:"withdrawn,omitempty"`
	// OpenedAt is when the last of its files in the volume was first opened since they show what they show. Else Opened says
	// no, unknown or unsupported, OpenedReason why opens are not watched, and Unopened has paths of files that were not opened: at most 8 of UnopenedCount. ShownSince
	// is when the last of its files came to show what it shows.
	OpenedAt      *time.Time `json:"openedAt,omitempty"`
	Opened        string     `json:"opened,omitempty"`
	OpenedReason  string     `json:"openedReason,omitempty"`
	Unopened      []string   `json:"unopened,omitempty"`
	UnopenedCount int        `json:"unopenedCount,omitempty"`
	ShownSince    *time.Time `json:"shownSince,omitempty"`
	// State is one of those that docs/metrics.md lists, and Reason says why it is unknown or denied.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// OlderAnswer is what the API server answers, if that is older than what the volume shows, as after a restore of etcd; nil
	// otherwise.
	OlderAnswer *OlderAnswer `json:"olderAnswer,omitempty"`
	// LastConfirmed is when the API server last said what the object's state is, or by a bookmark that
	// it has not changed; nil for never.
	LastConfirmed *time.Time `json:"provenAt,omitempty"`
	// Watched says that LastConfirmed is to advance. It does not for an object that can't change, or
	// that nothing has read for long, as of a Pinned volume.
	Watched bool `json:"followed"`
}

// Version is one version of an object.
type Version struct {
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
}
