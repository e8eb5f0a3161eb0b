package check

import (
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

// reportKind is the kind of a Report. Its apiVersion is status.APIVersion.
const reportKind = "CheckReport"

// Report has all results. In JSON every field is always present, and no array is null. Later releases may add fields, but don't change the
// meaning of a field.
type Report struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Driver is the name of the CSI driver whose volumes were validated.
	Driver string `json:"driver"`
	// Live means that an API server was asked.
	Live bool `json:"live"`
	// Workloads are in the order of the input.
	Workloads []Workload `json:"workloads"`
	// PassedOver lists the manifests of kinds without pods.
	PassedOver []Location `json:"passedOver"`
	// Problems must be fixed. Warnings should be checked.
	Problems []Issue `json:"problems"`
	Warnings []Issue `json:"warnings"`
}

// Location is one manifest of the input. Fields that are not known are empty.
type Location struct {
	File string `json:"file"`
	// Document is the number of the document in the file, from 1, without empty ones.
	Document int `json:"document"`
	// Item is the number of the item in a List, from 1, or 0 outside of a List.
	Item      int    `json:"item"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Workload is a pod, or an object that creates pods from a template.
type Workload struct {
	Location
	// ServiceAccount is the account of its pods.
	ServiceAccount string      `json:"serviceAccount"`
	References     []Reference `json:"references"`
}

// Reference is one field in a workload that names a ConfigMap or a Secret.
type Reference struct {
	// Field is the path of the field that holds the name. Attributes of a refvol volume are fields below volumeAttributes, and so are the
	// fields in their text: spec.volumes[0].csi.volumeAttributes.sources[0].configMap.name.
	Field string `json:"field"`
	// Via is the path of the name in the pod's spec, for a podEnv or volume source. Field is then the path of the source. Otherwise Via is
	// "".
	Via string `json:"via"`
	// Refvol means that a volume of this driver shows the object.
	Refvol    bool   `json:"refvol"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Keys are the named keys. If it is empty, the whole object is meant.
	Keys []string `json:"keys"`
	// Optional means that a pod starts without the object and its keys.
	Optional bool `json:"optional"`
	// Canary means that the object exists only for the pods in its share. Share is that share, such as 10%, if the object exists; it says why
	// if the annotation does not count.
	Canary bool   `json:"canary"`
	Share  string `json:"share"`
	// Exists, MissingKeys and MayGet are the API server's answers. They are "unknown" and empty if it was not asked or did not answer.
	Exists Answer `json:"exists"`
	// MissingKeys are those of Keys that the object lacks.
	MissingKeys []string `json:"missingKeys"`
	// MayGet says whether the pods' service account may get the object. It needs that right for objects of other namespaces and, with
	// --identity=pod, for all objects that a volume of the driver shows.
	MayGet Answer `json:"mayGet"`

	// env means that the reference is for environment variables, which use only a ConfigMap's data.
	env bool
}

func (r *Reference) ref() volume.Ref {
	return volume.Ref{Kind: volume.Kind(r.Kind), Namespace: r.Namespace, Name: r.Name}
}

// Answer is the answer to a question, as far as it is known.
type Answer string

// The answers.
const (
	Yes     Answer = "yes"
	No      Answer = "no"
	Unknown Answer = "unknown"
	// NotNeeded is the value of MayGet if the pod needs no right, because the kubelet or the plugin reads the object.
	NotNeeded Answer = "not needed"
)

// Issue is a problem or a warning at one place.
type Issue struct {
	Location
	// Field is the path of the field in the manifest, or "" for the manifest as a whole.
	Field   string `json:"field"`
	Message string `json:"message"`
}

func newReport(driver string, live bool) *Report {
	return &Report{
		APIVersion: status.APIVersion, Kind: reportKind,
		Driver: driver, Live: live,
		Workloads: []Workload{}, PassedOver: []Location{}, Problems: []Issue{}, Warnings: []Issue{},
	}
}
