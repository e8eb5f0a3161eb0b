package volume

// EnvFormat is the syntax of an env file.
type EnvFormat string

// The formats of env files.
const (
	// EnvDotenv is what dotenv parsers read.
	EnvDotenv EnvFormat = "dotenv"
	// EnvShell is what a POSIX shell can source.
	EnvShell EnvFormat = "shell"
)

// PodEnv is the environment of a container of the pod.
type PodEnv struct {
	// Container names an init or regular container.
	Container string
}

// Env says which variables an env file holds: all keys of some objects first, then
// single ones. A later one of the same name wins.
type Env struct {
	From []EnvFrom
	Vars []EnvVar
}

// EnvFrom makes a variable of each key of an object's data.
type EnvFrom struct {
	Prefix string
	Ref    Ref
	// Optional forgives an object that does not exist.
	Optional bool
	// Field is where the author wrote it: sources[0].env.envFrom[1].configMapRef.
	Field string
}

// EnvVar is one variable. A Value that is not empty beats Key, FieldRef and Unknown, of
// which at most one is set.
type EnvVar struct {
	Name string
	// Value may refer to variables that are set before it as $(NAME).
	Value    string
	Key      *Reference
	FieldRef PodField
	// Unknown says that the variable has a value that a volume can't know: it is left
	// out, and so is what was set under its name before.
	Unknown bool
}

// PodField is a field of the pod whose value a publish request tells.
type PodField string

// The fields of a pod that can be the value of a variable.
const (
	PodName           PodField = "metadata.name"
	PodNamespace      PodField = "metadata.namespace"
	PodUID            PodField = "metadata.uid"
	PodNodeName       PodField = "spec.nodeName"
	PodServiceAccount PodField = "spec.serviceAccountName"
)

// PodFields returns every PodField.
func PodFields() []PodField {
	return []PodField{PodName, PodNamespace, PodUID, PodNodeName, PodServiceAccount}
}
