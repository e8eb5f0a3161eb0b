// Package status is the status that a plugin reports about its volumes: its format, and how it is served, fetched and printed.
//
// It owns the names and the version of the format, which tools read. It must not know what makes a volume current. It holds no value of an
// object.
package status

import "time"

const (
	// APIVersion is the version of the format. It changes when a reader of the old version could misread the new format.
	APIVersion = "status.refvol.dev/v1alpha2"
	// Kind is the kind of a Report.
	Kind = "PluginStatus"
)

// Report is what one plugin reports about its volumes at one moment. An object is in it once, however many volumes name it, so its size grows
// with the objects.
type Report struct {
	Header

	// Objects are the objects that the volumes name. An object that is read with pods' rights is there once for each account.
	Objects []*Object `json:"objects"`
	// Volumes are the volumes that are mounted or being published. If the request named objects, they are the volumes that name one of
	// these, with only these, and the volumes whose objects are not known.
	Volumes []Volume `json:"volumes"`
	// Others are all other volumes, if the request named objects.
	Others []PodVolumes `json:"others,omitempty"`
}

// Header is the part of a Report that describes the plugin.
type Header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Driver, Node and Version describe the plugin.
	Driver  string `json:"driver"`
	Node    string `json:"node"`
	Version string `json:"version"`
	// ObservedAt is the time of the answer on the plugin's clock. The other times are of the same clock.
	ObservedAt time.Time `json:"observedAt"`
	// MissingRights are the rights that the plugin's account needs and lacks, such as "list of secrets".
	MissingRights []string `json:"missingRights,omitempty"`
	// NotReady are the conditions that the plugin needs to be ready and that are not met, each with the reason.
	NotReady []string `json:"notReady,omitempty"`
	// KnowsRollout means that the plugin obeys the annotation refvol.dev/rollout. Plugins of earlier releases don't.
	KnowsRollout bool `json:"knowsRollout"`
	// Refused are the volumes whose last publish failed within the last ten minutes.
	Refused []Refusal `json:"refused,omitempty"`
}

// Refusal is a publish that failed.
type Refusal struct {
	VolumeID string `json:"volumeID"`
	// Name is the volume's name in the pod's spec.
	Name string `json:"name"`
	// Pod has no name if the request did not contain it.
	Pod Pod `json:"pod"`
	// Code is the gRPC code of the answer, such as InvalidArgument. Message says why.
	Code    string `json:"code"`
	Message string `json:"message"`
	// At is when the answer was given.
	At time.Time `json:"at"`
}

// Volume is the status of one volume.
type Volume struct {
	VolumeID string `json:"volumeID"`
	// Name is the volume's name in the pod's spec.
	Name string `json:"name"`
	Pod  Pod    `json:"pod"`
	// Condition is one of those in docs/metrics.md. Reason explains it, or is "".
	Condition string `json:"condition"`
	Reason    string `json:"reason,omitempty"`
	// Abnormal means that somebody should look at the volume.
	Abnormal bool `json:"abnormal"`
	// Since is when the condition began, or when the plugin started if the condition is older.
	Since time.Time `json:"since"`
	// Bytes is the memory that the volume's tmpfs holds, including inodes.
	Bytes int64 `json:"bytes"`
	// WithoutToken means that the pod's service account has no usable token (--identity=pod).
	WithoutToken bool `json:"withoutToken,omitempty"`
	// OpenedReason says why opens of the volume's files are not watched. It is "" if they are, or if that is not known.
	OpenedReason string `json:"openedReason,omitempty"`
	// Objects are the objects that the volume names. It is empty until a volume of an earlier process is taken over.
	Objects []VolumeObject `json:"objects"`
}

// Pod is the pod that a volume belongs to. Namespace and Name may be "" until a volume of an earlier process is taken over.
type Pod struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid"`
}

// PodVolumes are the names of some volumes of a pod.
type PodVolumes struct {
	// PodUID is the pod's UID.
	PodUID  string   `json:"podUID"`
	Volumes []string `json:"volumes"`
}

// Object is an object that volumes name.
type Object struct {
	// Kind is ConfigMap or Secret.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// ServiceAccount is the account whose rights are used to read the object, as namespace/name. It is "" for the plugin's own rights.
	ServiceAccount string `json:"serviceAccount,omitempty"`
	// State is one of those in docs/metrics.md. Reason says why it is unknown or denied.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// Followed means that ProvenAt should advance. It does not for an immutable object, or for one that nothing has read for a long time,
	// such as the objects of a Pinned volume.
	Followed bool `json:"followed"`
	// ProvenAt is when the API server last sent the object's state, or confirmed by a bookmark that it is unchanged; nil for never.
	ProvenAt *time.Time `json:"provenAt,omitempty"`
	// OlderAnswer is the API server's answer if it is older than what a volume shows, for example after a restore of etcd. Otherwise it is
	// nil.
	OlderAnswer *OlderAnswer `json:"olderAnswer,omitempty"`
	// Immutable means that the plugin knows the object as immutable. It then asks for no later version, whose data would be the same.
	Immutable bool `json:"immutable,omitempty"`
	// Canary is the share of the pods for which the object exists in volumes that name it as a canary, such as 10%. If the annotation
	// refvol.dev/canary does not count, it is 0% and says why. It is "" for an object without the annotation.
	Canary string `json:"canary,omitempty"`
	// Versions are the versions that volumes show, or that say that the object is Absent in a volume.
	Versions []Version `json:"versions,omitempty"`
}

// VolumeObject is an object that a volume names, and what the volume shows of it. JSON has numbers in the place of Object and Shown: Read
// and Report.Number convert them.
type VolumeObject struct {
	*Object `json:"-"`

	// Shown is the version that the files show, or nil if they show none.
	Shown *Version `json:"-"`
	// Index is the place of Object in Report.Objects, and ShownIndex the place of Shown in Object.Versions. They count from 0.
	Index      int  `json:"object"`
	ShownIndex *int `json:"shown,omitempty"`
	// Absent is the version of a canary that does not exist for the volume's pod, or nil. JSON has AbsentIndex, as for Shown.
	Absent      *Version `json:"-"`
	AbsentIndex *int     `json:"absent,omitempty"`
	// Withdrawn means that the pod may no longer read the object, and that no file of it remains.
	Withdrawn bool `json:"withdrawn,omitempty"`
	// OpenedAt is when the last of the object's files in the volume was first opened with its present content. If it is nil, Opened is
	// "no", "unknown" or "unsupported", and Unopened has at most 8 paths of files that were not opened. UnopenedCount is the number of all
	// of them. ShownSince is when the last file got its present content.
	OpenedAt      *time.Time `json:"openedAt,omitempty"`
	Opened        string     `json:"opened,omitempty"`
	Unopened      []string   `json:"unopened,omitempty"`
	UnopenedCount int        `json:"unopenedCount,omitempty"`
	ShownSince    *time.Time `json:"shownSince,omitempty"`
}

// Shows reports whether the volume shows the data of an object's version. An immutable object has the same data in all later versions.
func (v *Volume) Shows(o *VolumeObject, version Version) bool {
	return o.Shown != nil && (o.Shown.Is(version) || o.Immutable && o.Shown.UID == version.UID && v.Condition == "Current")
}

// Version is one version of an object.
type Version struct {
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
	// Revision is the annotation refvol.dev/revision of a shown version: "unknown" if the version is held since before the plugin's restart,
	// or "" for none.
	Revision string `json:"revision,omitempty"`
}

// Is reports whether two versions are the same.
func (v Version) Is(other Version) bool {
	return v.UID == other.UID && v.ResourceVersion == other.ResourceVersion
}
