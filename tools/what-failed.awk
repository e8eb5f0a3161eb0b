# Of what go test printed, with -v or without: the tests that failed, and what each of them said.
# Each message is cut, for the output of CI is shown from its end, and not all of it.
function say(text) {
	text = substr(text, 1, 240)
	if (failed) print text
	else said[name] = said[name] text "\n"
}
{ sub(/\r$/, "") }
/^=== (RUN|PAUSE|CONT|NAME) / { name = $3; failed = 0; indent = -1; next }
/^ *--- FAIL: / {
	print
	name = $3; failed = 1; indent = -1
	printf "%s", said[name]
	delete said[name]
	next
}
/^ *--- / || /^(ok|FAIL|PASS)/ { name = ""; indent = -1 }
/^(FAIL\t|panic: |fatal error: |WARNING: DATA RACE|make.* Error )/ {
	print substr($0, 1, 240)
	after = /^(FAIL|make)/ ? 0 : 12
	next
}
after > 0 { after--; print substr($0, 1, 240); next }
name != "" {
	match($0, /^ */)
	if (/^ +[^ ]+\.go:[0-9]+: /) {
		indent = RLENGTH; more = 12
		say($0)
	} else if (indent >= 0 && RLENGTH > indent && more-- > 0) say($0)
}
