package contract_test

// Why an answer is never sent.
const (
	onlyByMistake = "it reads nothing that could be broken: only a mistake of the program's gives it " +
		"(shared/httpx shows the answer to one)"
	onlyByFlood = "its address alone is limited, before any route is looked at (shared/httpx TestLimits)"
)

// never lists documented answers that the tests do not provoke, and why.
var never = map[string]string{
	"listResources 500":      onlyByMistake,
	"deleteKeyPair 500":      onlyByMistake,
	"suggestAccessRules 500": onlyByMistake,
	"getStatus 500":          onlyByMistake,
	"listProviders 500":      onlyByMistake,
	"getDescription 500":     onlyByMistake,
	"getReference 500":       onlyByMistake,
	"getReferenceFile 500":   onlyByMistake,
	"openConsole 500":        onlyByMistake,
	"getConsole 500":         onlyByMistake,
	"getConsoleFile 500":     onlyByMistake,
	"getAgentBundle 429":     onlyByFlood,
	"agentReady 429":         onlyByFlood,
	"reportNode 429":         onlyByFlood,
	"getSession 429":         onlyByFlood,
	"signOut 429":            onlyByFlood,
	"getDescription 429":     onlyByFlood,
	"getReference 429":       onlyByFlood,
	"getReferenceFile 429":   onlyByFlood,
}
