package check

import (
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

// reportKind is that of a Report. Its apiVersion is status.APIVersion.
const reportKind = "CheckReport"

// Report is all that was found. It marshals to JSON with every field always there and
// no array null; fields may be added, none changes its meaning.
type Report struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Driver is the name of the CSI driver whose volumes were validated.
	Driver string `json:"driver"`
	// Live says whether an API server was asked.
	Live bool `json:"live"`
	// Workloads, in the order of the input.
	Workloads []Workload `json:"workloads"`
	// PassedOver lists the manifests of kinds that have no pods.
	PassedOver []Location `json:"passedOver"`
	// Problems must be mended; Warnings are worth a look.
	Problems []Issue `json:"problems"`
	Warnings []Issue `json:"warnings"`
}

// Location is one manifest of the input. What is not known of it is empty.
type Location struct {
	File string `json:"file"`
	// Document counts those of the file from 1, without empty ones.
	Document int `json:"document"`
	// Item counts those of a List from 1; 0 outside of a List.
	Item      int    `json:"item"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Workload is a pod, or what makes pods of a template.
type Workload struct {
	Location
	// ServiceAccount is that of its pods.
	ServiceAccount string      `json:"serviceAccount"`
	References     []Reference `json:"references"`
}

// Reference is one place in a workload that names a ConfigMap or a Secret.
type Reference struct {
	// Field is the path of the field that holds the name. The attributes of a refvol
	// volume are fields below volumeAttributes, and so are the fields of their text:
	// spec.volumes[0].csi.volumeAttributes.sources[0].configMap.name.
	Field string `json:"field"`
	// Via is the path of the name in what a podEnv or volume source takes from the pod's spec;
	// Field is then the path of the source. Otherwise Via is empty.
	Via string `json:"via"`
	// Refvol says that a volume of this driver shows the object.
	Refvol    bool   `json:"refvol"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Keys are those that the place names; none means the whole object.
	Keys []string `json:"keys"`
	// Optional says that a pod starts without the object and its keys.
	Optional bool `json:"optional"`
	// Exists, MissingKeys and MayGet are the API server's answers, "unknown" and empty
	// where it was not asked, or did not tell.
	Exists Answer `json:"exists"`
	// MissingKeys are those of Keys that the object lacks.
	MissingKeys []string `json:"missingKeys"`
	// MayGet says whether the pods' service account may get the object. It needs that for objects of other namespaces, and
	// with pods' identities for all that a volume of the driver shows.
	MayGet Answer `json:"mayGet"`

	// env says that an environment is made of it, which sees a ConfigMap's data only.
	env bool
}

func (r *Reference) ref() volume.Ref {
	return volume.Ref{Kind: volume.Kind(r.Kind), Namespace: r.Namespace, Name: r.Name}
}

// Answer is what is known of a question.
type Answer string

// The answers.
const (
	Yes     Answer = "yes"
	No      Answer = "no"
	Unknown Answer = "unknown"
	// NotNeeded is the answer to whether a pod may get what the kubelet or the plugin reads for it.
	NotNeeded Answer = "not needed"
)

// Issue is what is wrong, or worth a look, at one place.
type Issue struct {
	Location
	// Field is the path of the field in the manifest; empty if it is about the whole.
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
